"""Three products by lanes: terms that are kept, kept in part and made again, for all options, against the reference."""

import math
from functools import partial

import pytest
import torch

from python_ref import class_log_sum_exp
from robustdml_ops.backends import native_module
from robustdml_ops.engine import similarity_chunks
from robustdml_ops.engine.rows import backends as row_backends
from robustdml_ops.losses import NormalizedSoftmaxLoss
from robustdml_ops.ops import ABSENT, class_lse, limit_saved_bytes
from robustdml_ops.ops.classes import backends
from tests.classes.test_class_lse import POOLINGS, WANTS, Case
from tests.classes.test_class_lse import assert_close as assert_within

pytestmark = pytest.mark.skipif(
    native_module.library is None or not native_module.matrix_product(torch.float32), reason="no sweep by lanes here"
)
assert_close = partial(assert_within, tolerance=1e-9)
# Terms that are kept of 45 classes and 33 samples in float64: all, some chunks of 7 classes, none.
LIMITS = {"kept": None, "partly kept": 20 * 33 * 8, "made again": 0}


@pytest.fixture(params=LIMITS.values(), ids=LIMITS.keys())
def limit(request):
    limit_saved_bytes(request.param)
    yield request.param
    limit_saved_bytes(None)


@pytest.fixture
def calls(monkeypatch):
    """Names of the native functions that sweeps called."""
    names, call = [], backends.call

    def spy(name, *arguments, **given):
        names.append(name)
        return call(name, *arguments, **given)

    monkeypatch.setattr(backends, "call", spy)
    return names


THREE = ["class_terms", "class_terms_backward"]
OPTIONS = {
    "plain": {},
    "scale 64": {"scale": 64.0},
    "scale < 0": {"scale": -20.0},
    "scale 0": {"scale": 0.0},
    "without the target": {"scale": 20.0, "exclude_target": True, "target_bias": 5.0},
    "a large target bias": {"scale": 8.0, "target_bias": 300.0},
    "dropped": {"scale": 8.0, "drop_similar_negatives": 0.2},
    "nearly all dropped": {"scale": 8.0, "drop_similar_negatives": -0.9, "exclude_target": True},
    "a scale of each": {"scale": torch.linspace(-30, 40, 45).double()},
    "biases and masks": {
        "scale": 9.0,
        "bias": torch.arange(45.0).double().sub(20).masked_fill(torch.arange(45) % 6 == 0, -math.inf),
    },
}


@pytest.mark.usefixtures("small_chunks", "limit")
@pytest.mark.parametrize("K", [None, 3])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_any_upstream_gradient(options, pooling, K, calls):
    case = Case(33, 45, 9, None if pooling == "none" else 3, K=K, **options, **POOLINGS[pooling])
    of_lse, of_target = case.upstream
    of_lse[1:3] = of_target[1:2] = of_target[3:4] = 0
    assert_close(case.run(class_lse, backend="native"), case.run(class_log_sum_exp))
    assert calls == THREE


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 3), (5, 1, 4), (130, 300, 8), (257, 5, 33)])
def test_shapes_and_layouts(shape, columns, calls):
    case = Case(*shape, scale=20.0)
    if columns:
        case.proxies = case.proxies.t().contiguous().t()
    assert_close(case.run(class_lse, backend="native"), case.run(class_log_sum_exp))
    assert calls == THREE


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_same_bits_whatever_is_kept_and_whoever_works(pooling, dtype, threads):
    case, found = Case(33, 45, 9, None if pooling == "none" else 3, scale=20.0, **POOLINGS[pooling]), []
    for number, most in ((1, None), (2, None), (3, None), (3, 20 * 33 * 4), (2, 0)):
        threads(number)
        limit_saved_bytes(most)
        try:
            found.append(case.run(class_lse, backend="native", dtype=dtype))
        finally:
            limit_saved_bytes(None)
    for other in found[1:]:
        assert all(map(torch.equal, found[0][:2], other[:2]))
    for other in found[1:]:
        # Blocks of chunks, whose sums are added, follow the number of threads; what is kept does not enter.
        torch.testing.assert_close(other, found[0], rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert all(map(torch.equal, found[2], found[3])) and all(map(torch.equal, found[1], found[4]))


@pytest.mark.parametrize("want", WANTS[1:])
@pytest.mark.usefixtures("limit")
def test_one_gradient_alone(want):
    case = Case(9, 12, 6, scale=8.0)
    ours, exact = (case.run(f, want=want) for f in (partial(class_lse, backend="native"), class_log_sum_exp))
    assert_close(ours, exact)


@pytest.mark.usefixtures("limit", "small_chunks")
def test_a_second_backward_with_another_upstream_gradient(calls):
    case = Case(33, 45, 6, scale=8.0)
    X, P = case.embeddings.requires_grad_(), case.proxies.requires_grad_()
    ours = class_lse(X, P, case.labels, scale=8.0, backend="native")
    exact = class_log_sum_exp(X, P, case.labels, scale=8.0)
    for dlse, dtarget in (case.upstream, case.upstream[::-1]):
        found, expected = (
            torch.autograd.grad(result, (X, P), (dlse, dtarget), retain_graph=True) for result in (ours, exact)
        )
        assert_close(found, expected)
    assert calls == [*THREE, THREE[1]]


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 64.5},
        {"scale": torch.linspace(0, 65, 12).double()},
        {"scale": 40.0, "bias": torch.full((12,), -25.0).double()},
        {"normalize_proxies": False},
    ],
    ids=str,
)
def test_logits_without_a_bound_take_a_shift(options, calls):
    case = Case(9, 12, 6, **options)
    assert_close(case.run(class_lse, backend="native"), case.run(class_log_sum_exp))
    assert calls == ["class_sweep", "class_sweep_backward"]


def test_labels_that_are_absent_and_a_masked_label(calls):
    case = Case(9, 12, 6, K=2, scale=8.0)
    case.labels[:] = ABSENT
    case.labels[0, 0] = 3
    case.options["bias"] = torch.zeros(12).double()
    case.options["bias"][3] = -torch.inf
    assert_close(case.run(class_lse, backend="native"), case.run(class_log_sum_exp))
    assert calls == THREE


@pytest.mark.usefixtures("limit", "small_chunks")
def test_rows_of_extreme_lengths():
    """Zero rows have no gradient; those out of reach are multiplied as unit rows."""
    case = Case(33, 45, 6, scale=30.0)
    case.proxies[4] = case.embeddings[5] = 0
    case.proxies[11] *= 1e-12
    case.proxies[30] *= 1e12
    ours, exact = case.run(class_lse, dtype=torch.float32, backend="native"), case.run(class_log_sum_exp)
    assert not ours[3][4].any() and not ours[2][5].any()
    lengths = case.proxies.norm(dim=1, keepdim=True)
    for mine, truth in ((ours[2], exact[2]), (ours[3] * lengths, exact[3] * lengths)):
        assert (mine - truth).norm() <= 1e-5 * truth.norm()


@pytest.mark.parametrize("scale", [20.0, 64.0])
@pytest.mark.parametrize("kind", ["random", "peaky", "opposite", "alike"])
def test_as_near_to_float64_as_pytorch(kind, scale):
    """Mean losses: half of the classes copied from the batch; all samples opposite to, or at, all proxies."""
    random = torch.Generator().manual_seed(5)
    normal = partial(torch.randn, generator=random, dtype=torch.float64)
    B, C, D = 64, 500, 32
    X, P, y = normal(B, D), normal(C, D), torch.randint(C, (B,), generator=random)
    if kind == "peaky":
        P[: C // 2] = X[torch.arange(C // 2) % B] + 1e-2 * normal(C // 2, D)
    if kind in ("opposite", "alike"):
        P = P[:1] + 0.1 * normal(C, D)
        X = (1 if kind == "alike" else -1) * P[:1] + 0.1 * normal(B, D)

    def pytorch(X, P, y):
        logits = scale * torch.nn.functional.normalize(X) @ torch.nn.functional.normalize(P).t()
        return torch.nn.functional.cross_entropy(logits, y)

    def ours(X, P, y):
        lse, target = class_lse(X, P, y, scale=scale, backend="native")
        return (lse - target).mean()

    def gradients(loss, dtype):
        leaves = [M.to(dtype).requires_grad_() for M in (X, P)]
        return torch.autograd.grad(loss(*leaves, y), leaves)

    exact = gradients(pytorch, torch.float64)
    for mine, theirs, truth in zip(*(gradients(f, torch.float32) for f in (ours, pytorch)), exact, strict=True):
        assert (mine - truth).norm() <= 1.5 * (theirs - truth).norm() + 1e-7 * truth.norm()


def test_memory_is_reused_and_stays_within_the_limit():
    X, P = torch.randn(256, 8), torch.nn.Parameter(torch.randn(2000, 8))
    places, others = [], []
    limit_saved_bytes(1500 * 256 * 4)
    try:
        for _ in range(3):
            lse, target = class_lse(X, P, torch.arange(256))
            shapes = {(*t.shape,): t.data_ptr() for t in lse.grad_fn.saved_tensors if t is not None}
            assert max(math.prod(shape) for shape in shapes) == 1500 * 256
            places.append(shapes[1500, 256])
            (lse - target).sum().backward()
            del lse, target
            others.append(torch.empty(1500, 256))  # would take what the step gave back
    finally:
        limit_saved_bytes(None)
    assert len(set(places)) == 1


def test_no_terms_without_a_gradient():
    result = class_lse(torch.randn(4, 3), torch.randn(5, 3), torch.arange(4), scale=8.0)
    assert result.lse.grad_fn is None
    X = torch.randn(4, 3, requires_grad=True)
    saved = class_lse(X, torch.randn(5, 3), torch.arange(4), scale=8.0).lse.grad_fn.saved_tensors
    assert not any(tensor is not None and tensor.shape == (5, 4) for tensor in saved)


@pytest.mark.parametrize("most", [-1, 1.5, True, "1 GB"])
def test_a_limit_that_is_no_number_of_bytes(most):
    with pytest.raises(ValueError, match="most must be a number of bytes, 0 or more, or None"):
        limit_saved_bytes(most)


def test_the_share_of_the_memory_of_a_machine():
    share = similarity_chunks.bytes_to_save(torch.device("cpu"))
    assert share == similarity_chunks.machine_memory() // 32 > 1 << 20


@pytest.mark.parametrize("planned", [True, False])
def test_a_limit_that_is_set_between_two_steps(planned):
    """It holds for the next step, and the memory of the last one is given back."""
    loss_function, y = NormalizedSoftmaxLoss(2000, 8), torch.arange(256)
    X, found = torch.randn(256, 8, requires_grad=True), []
    try:
        for most in (None, 0, None):
            limit_saved_bytes(most)
            X.grad = loss_function.W.grad = None
            loss_function(X, y, sample_weights=None if planned else torch.ones(256, requires_grad=True)).backward()
            kept = row_backends._storages[loss_function.W].get("terms")
            assert (0 if kept is None else kept.nbytes()) == (2000 * 256 * 4 if most is None else 0)
            found.append((X.grad, loss_function.W.grad.clone()))
    finally:
        limit_saved_bytes(None)
    assert all(map(torch.equal, found[0], found[1]))
