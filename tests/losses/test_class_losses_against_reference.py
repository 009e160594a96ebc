"""Values and all gradients of the losses over classes against the dense references."""

import pytest
import torch
from class_cases import NAMES, ClassCase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_ref import soft_triple_regularizer
from robustdml_ops.losses import SoftTripleLoss

CPU_BACKENDS = ("native", "eager")
SHAPES = [(1, 2, 1), (2, 3, 1), (5, 2, 3), (17, 33, 7), (64, 65, 16), (3, 500, 31)]


def assert_close(ours, reference, tolerance=1e-12):
    assert torch.isfinite(ours).all()
    scale = 1 + reference.abs().max()
    torch.testing.assert_close(ours / scale, reference / scale, rtol=0, atol=tolerance)


def assert_same(case, tolerance=1e-12):
    ours, reference = case.ours(), case.reference()
    assert ours.shape == reference.shape
    assert_close(ours, reference, tolerance)
    for mine, theirs in zip(case.gradients(ours), case.gradients(reference), strict=True):
        assert_close(mine, theirs, tolerance)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_chunks")
def test_float64_matches_reference(name, weighted, reduction, backend):
    for shape in SHAPES:
        assert_same(ClassCase(name, *shape, weighted=weighted, reduction=reduction, backend=backend), 1e-11)


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_cases(data):
    case = ClassCase(
        name=data.draw(st.sampled_from(NAMES)),
        B=data.draw(st.integers(1, 40)),
        C=data.draw(st.integers(2, 90)),
        D=data.draw(st.integers(1, 40)),
        weighted=data.draw(st.booleans()),
        reduction=data.draw(st.sampled_from(["mean", "none"])),
        backend=data.draw(st.sampled_from(CPU_BACKENDS)),
        seed=data.draw(st.integers(0, 2**16)),
    )
    assert_same(case, 1e-10)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_float32_is_as_good_as_the_reference_in_float32(name, reduction, backend):
    case = ClassCase(name, 70, 900, 48, dtype=torch.float32, reduction=reduction, backend=backend)
    exact, theirs, ours = case.reference(torch.float64), case.reference(), case.ours()
    pairs = [(ours, theirs, exact), *zip(*map(case.gradients, (ours, theirs, exact)), strict=True)]
    for mine, dense, truth in pairs:
        allowed = 4 * (dense - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (mine - truth).abs().max() <= allowed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_computed_in_float32(name, dtype):
    case = ClassCase(name, 19, 53, 24, dtype=dtype)
    ours = case.ours()
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, case.reference(torch.float32), rtol=2e-5, atol=2e-5)
    exact = case.gradients(case.reference(torch.float32))
    for mine, theirs, tensor in zip(case.gradients(ours), exact, case.inputs, strict=True):
        assert mine.dtype == tensor.dtype
        torch.testing.assert_close(mine, theirs, rtol=4 * torch.finfo(dtype).eps, atol=1e-3 * float(theirs.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_inputs_in_any_layout(name):
    case = ClassCase(name, 17, 33, 7, weighted=True)
    case.embeddings = case.embeddings.detach().t().contiguous().t().requires_grad_()
    stored = case.parameter.data
    other = stored.contiguous() if stored.t().is_contiguous() else stored.t().contiguous().t()
    assert other.stride() != stored.stride()
    case.parameter.data = other
    case.labels = case.labels.repeat_interleave(2)[::2].int()
    case.weights = case.weights.detach().repeat_interleave(2)[::2].requires_grad_()
    ours = case.ours()
    case.labels = case.labels.long()
    reference = case.reference()
    assert_close(ours, reference)
    for mine, theirs in zip(case.gradients(ours), case.gradients(reference), strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_twice(name):
    def bits():
        case = ClassCase(name, 130, 3000, 32, dtype=torch.float32, weighted=True)
        loss = case.ours()
        return [loss, *case.gradients(loss)]

    assert all(torch.equal(a, b) for a, b in zip(bits(), bits(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_gives_the_loss_of_what_it_keeps(name):
    whole = ClassCase(name, 24, 30, 6)
    keep = torch.arange(24) % 3 > 0
    whole.weights = keep.double()
    kept = ClassCase(name, 24, 30, 6)
    X = whole.embeddings.detach()[keep].requires_grad_()
    loss, alone = whole.ours(), kept.module(X, whole.labels[keep])
    torch.testing.assert_close(loss, alone, rtol=1e-14, atol=0)
    loss.backward()
    alone.backward()
    torch.testing.assert_close(whole.embeddings.grad[keep], X.grad, rtol=1e-12, atol=1e-15)
    assert not whole.embeddings.grad[~keep].any()
    torch.testing.assert_close(whole.parameter.grad, kept.parameter.grad, rtol=1e-12, atol=1e-15)


def test_weights_between_0_and_1_make_a_smaller_step():
    """The divisor counts samples; by the sum of weights it would undo what they all have in common."""
    case, full = ClassCase("proxy-nca", 9, 5, 3), ClassCase("proxy-nca", 9, 5, 3)
    case.weights = torch.full((9,), 0.25, dtype=torch.float64)
    torch.testing.assert_close(case.ours(), full.ours() / 4)


@pytest.mark.parametrize(("C", "H", "D"), [(1, 1, 1), (4, 1, 3), (3, 2, 2), (5, 7, 4), (40, 10, 16)])
def test_regularizer(C, H, D):
    loss_function = SoftTripleLoss(C, D, H, regularizer_weight=0.7).double()
    ours = loss_function.regularizer()
    theirs = 0.7 * soft_triple_regularizer(loss_function.fc.t().reshape(C, H, D))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    if H > 1 and D > 1:  # of vectors of length 1 in one dimension, two may coincide
        gradients = (torch.autograd.grad(value, loss_function.fc)[0] for value in (ours, theirs))
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_regularizer_where_centers_coincide_or_vanish():
    """The root has no derivative at 0: no NaN, and no force between centers that are one already."""
    loss_function = SoftTripleLoss(2, 3, 3, regularizer_weight=1.0)
    centers = torch.tensor([[[1.0, 2, 3], [2, 4, 6], [1, 0, 0]], [[0, 0, 0], [0, 1, 0], [1, 1, 1]]])
    loss_function.fc.data = centers.reshape(6, 3).t()
    value = loss_function.regularizer()
    cosines = torch.tensor([14**-0.5, 14**-0.5, 0, 0, 3**-0.5], dtype=torch.float64)
    torch.testing.assert_close(value.double(), (2 - 2 * cosines).sqrt().sum() / 12, rtol=1e-6, atol=0)
    value.backward()
    gradient = loss_function.fc.grad.t().reshape(2, 3, 3)
    assert torch.isfinite(gradient).all()
    assert not gradient[1, 0].any()
    assert gradient[0, 0].abs().max() > 0  # from the third center


def test_regularizer_never_lets_classes_meet():
    """Its largest tensor is C×H×H, where all pairs of centers would be (C·H)²."""
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.untyped_storage().nbytes() // 4 for t in (out,) if isinstance(t, torch.Tensor))
            return out

    C, H, D = 300, 8, 4
    loss_function = SoftTripleLoss(C, D, H, regularizer_weight=1.0)
    with Watch():
        loss_function.regularizer().backward()
    assert max(sizes) <= C * H * H
