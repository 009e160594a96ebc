"""Values and all gradients of the fused losses against the dense references."""

import pytest
import torch
from cases import CPU_BACKENDS, NAMES, Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SHAPES = [(1, 1, 1), (2, 3, 1), (5, 2, 3), (17, 33, 7), (64, 65, 16), (3, 500, 31)]


def assert_close(ours, reference, tolerance=1e-12):
    assert torch.isfinite(ours).all()
    scale = 1 + reference.abs().max()
    torch.testing.assert_close(ours / scale, reference / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_chunks")
def test_float64_matches_reference(name, weighted, reduction, backend):
    for shape in SHAPES:
        case = Case(name, *shape, weighted=weighted, reduction=reduction, backend=backend)
        ours, reference = case.ours(), case.reference()
        assert ours.shape == reference.shape
        assert_close(ours, reference)
        for mine, theirs in zip(case.gradients(ours), case.gradients(reference), strict=True):
            assert_close(mine, theirs)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_cases(data):
    case = Case(
        name=data.draw(st.sampled_from(NAMES)),
        B=data.draw(st.integers(1, 40)),
        C=data.draw(st.integers(1, 90)),
        D=data.draw(st.integers(1, 40)),
        alpha=data.draw(st.sampled_from([0.5, 16.0, 32.0, 70.0, 200.0])),
        weighted=data.draw(st.booleans()),
        reduction=data.draw(st.sampled_from(["mean", "none"])),
        backend=data.draw(st.sampled_from(CPU_BACKENDS)),
        seed=data.draw(st.integers(0, 2**16)),
    )
    ours, reference = case.ours(), case.reference()
    assert_close(ours, reference)
    for mine, theirs in zip(case.gradients(ours), case.gradients(reference), strict=True):
        assert_close(mine, theirs, 1e-11)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alpha", [32.0, 100.0])
def test_float32_is_as_good_as_the_reference_in_float32(name, alpha, backend):
    case = Case(name, 70, 900, 48, dtype=torch.float32, alpha=alpha, backend=backend)
    exact = case.reference(torch.float64)
    theirs, ours = case.reference(), case.ours()
    pairs = [(ours, theirs, exact), *zip(*map(case.gradients, (ours, theirs, exact)), strict=True)]
    for mine, dense, truth in pairs:
        allowed = 4 * (dense - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (mine - truth).abs().max() <= allowed


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_computed_in_float32(name, dtype, backend):
    case = Case(name, 19, 53, 24, dtype=dtype, backend=backend)
    ours = case.ours()
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, case.reference(torch.float32), rtol=2e-5, atol=2e-5)
    gradients = case.gradients(ours)
    exact = case.gradients(case.reference(torch.float32))
    for mine, theirs, tensor in zip(gradients, exact, case.inputs, strict=True):
        assert mine.dtype == tensor.dtype
        # Both are rounded to dtype once at the end.
        torch.testing.assert_close(mine, theirs, rtol=4 * torch.finfo(dtype).eps, atol=1e-3 * float(theirs.abs().max()))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name, backend):
    case = Case(name, 5, 6, 3, alpha=3.0, weighted=True, reduction="none", backend=backend, seed=3)
    case.weights.data.clamp_(min=0.3)

    def function(*inputs):
        # Parameters are read from the module; perturbing them in place is what gradcheck does.
        return case.ours()

    assert torch.autograd.gradcheck(function, tuple(case.inputs), fast_mode=True)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_chunks")
def test_inputs_in_any_layout(name, backend):
    """Matrices stored by column, and every other entry of longer vectors."""
    case = Case(name, 17, 33, 7, weighted=True, backend=backend)
    case.embeddings = case.embeddings.detach().t().contiguous().t().requires_grad_()
    case.module.proxies.data = case.module.proxies.data.t().contiguous().t()
    case.weights = case.weights.detach().repeat_interleave(2)[::2].requires_grad_()
    case.labels = case.labels.repeat_interleave(2)[::2]
    case.hidden, case.weight = case.hidden.t().contiguous().t(), case.weight.t().contiguous().t()
    ours, reference = case.ours(), case.reference()
    assert_close(ours, reference)
    for mine, theirs in zip(case.gradients(ours), case.gradients(reference), strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_native_and_eager_agree_to_rounding(name):
    results = []
    for backend in CPU_BACKENDS:
        case = Case(name, 33, 3000, 20, dtype=torch.float32, backend=backend)
        loss = case.ours()
        results.append([loss, *case.gradients(loss)])
    for native, eager in zip(*results, strict=True):
        assert (native - eager).abs().max() <= 2e-5 * eager.abs().max()


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_same_bits_twice(name, backend):
    def bits():
        case = Case(name, 130, 9000, 32, dtype=torch.float32, weighted=True, backend=backend)
        loss = case.ours()
        return [loss, *case.gradients(loss)]

    assert all(torch.equal(a, b) for a, b in zip(bits(), bits(), strict=True))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("alpha", [80.0, 500.0, 1e4])
def test_alpha_beyond_the_range_of_exp(alpha, backend):
    for name in NAMES:
        case = Case(name, 20, 40, 8, dtype=torch.float32, alpha=alpha, backend=backend)
        ours = case.ours()
        torch.testing.assert_close(ours.double(), case.reference(torch.float64), rtol=1e-5, atol=1e-3)
        assert all(torch.isfinite(gradient).all() for gradient in case.gradients(ours))


@pytest.mark.parametrize("name", NAMES)
def test_absent_samples_change_nothing(name):
    """A weight of zero is the batch without the sample: loss, divisors and gradients."""
    whole = Case(name, 24, 30, 6)
    keep = torch.arange(24) % 3 > 0
    whole.weights = keep.double()
    part = Case(name, 24, 30, 6)
    part.embeddings = part.embeddings.detach()[keep].requires_grad_()
    part.labels, part.hidden = part.labels[keep], part.hidden[keep]
    ours, theirs = whole.ours(), part.ours()
    assert_close(ours, theirs)
    first, second = whole.gradients(ours), part.gradients(theirs)
    assert_close(first[0][keep], second[0])
    assert not first[0][~keep].any()
    for mine, other in zip(first[1:], second[1:], strict=True):
        assert_close(mine, other)
