"""The types and the precision of the operands of matrix products."""

import importlib
from types import SimpleNamespace

import pytest
import torch

from robustdml_ops import ops
from robustdml_ops.backends import dispatch, triton_device
from robustdml_ops.backends.dispatch import compute_dtype, operand_dtype
from robustdml_ops.backends.triton_device import exact_float32_products
from tests.every_call import OPS, B, D, first

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("dtypes", "supported", "expected", "under_autocast"),
    [
        ([F32], True, F32, BF16),
        ([F32], False, F32, F32),
        ([BF16], True, BF16, BF16),
        ([F16], True, BF16, BF16),  # gradients of size 1/C underflow in float16
        ([F16], False, F32, F32),
        ([F64], True, F64, F64),
        ([BF16, F16], True, BF16, BF16),
        ([BF16, F32], True, F32, BF16),  # the wider of the two, in either order
        ([F32, BF16], True, F32, BF16),
        ([F32, F16], True, F32, BF16),
    ],
)
def test_operands_on_a_gpu(dtypes, supported, expected, under_autocast, monkeypatch):
    capabilities = {0: 7 if supported else 8, 1: 8 if supported else 7}  # of two cards: the tensors' own decides
    properties = lambda device: SimpleNamespace(major=capabilities[device.index])  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    compute = F64 if F64 in dtypes else F32
    on_a_gpu = [SimpleNamespace(dtype=dtype, device=torch.device("cuda", 1)) for dtype in dtypes]
    assert operand_dtype(compute, *on_a_gpu) == expected
    assert operand_dtype(compute, *on_a_gpu, autocast=True) == expected
    # torch.autocast("cuda") does not open where there is no GPU.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert operand_dtype(compute, *on_a_gpu, autocast=True) == under_autocast
    # Where addmm refuses half operands, they are those of the sums.
    monkeypatch.setattr(dispatch, "ADDS_HALF_PRODUCTS", False)
    assert operand_dtype(compute, *on_a_gpu, autocast=True) == compute


@pytest.mark.parametrize(
    ("version", "adds"), [("2.6.0+cu124", False), ("2.9.1", False), ("2.10.0+cu128", True), ("2.13.0+cpu", True)]
)
def test_the_first_version_that_adds_half_products(version, adds, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    try:
        assert adds == importlib.reload(dispatch).ADDS_HALF_PRODUCTS
    finally:
        monkeypatch.undo()
        importlib.reload(dispatch)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_operands_elsewhere_are_those_of_the_sums(dtype):
    assert operand_dtype(F32, torch.ones(1, 1, dtype=dtype)) == F32
    with torch.autocast("cpu", BF16):
        assert operand_dtype(F32, torch.ones(1, 1, dtype=dtype), autocast=True) == F32
    assert operand_dtype(F32, torch.ones(1, 1, dtype=dtype, device="meta"), autocast=True) == F32


def test_sums_are_in_float32_at_least():
    assert compute_dtype(torch.ones(1, 1, dtype=BF16), torch.ones(1, 1, dtype=F16)) == F32
    assert compute_dtype(torch.ones(1, 1, dtype=BF16), torch.ones(1, 1, dtype=F64)) == F64


PRODUCTS = ("anchor_loss", "anchor_lse", "class_lse", "pair_lse_sum", "pair_hinge_sum", "pair_hinge")


def summed(name):
    """An op as a function of embeddings and of what they are compared with, in eager, where its products are seen."""
    call, op = OPS[name], getattr(ops, name)
    inputs = call.of(F32) | call.settings | {"backend": "eager"}

    def function(*matrices):
        return first(op(**inputs | dict(zip(call.differentiable, matrices, strict=True)))).sum()

    return function


def matrices(name, *dtypes):
    """What the op multiplies, by default in float32."""
    keys, inputs = OPS[name].differentiable, OPS[name].inputs()
    typed = zip(keys, dtypes or len(keys) * (F32,), strict=True)
    return [torch.randn(inputs[key].shape, dtype=dtype, requires_grad=True) for key, dtype in typed]


@pytest.fixture
def operands(monkeypatch):
    """Types of all operands of products, on a CPU that takes bfloat16 as a GPU does."""
    seen = set()
    mm, addmm, addmm_ = torch.mm, torch.addmm, torch.Tensor.addmm_

    def noted(A, B, out_dtype=None):
        """The operands in the type of the sums, which a CPU wants them to have."""
        seen.update((A.dtype, B.dtype))
        return (A, B) if out_dtype is None else (A.to(out_dtype), B.to(out_dtype))

    def spy_mm(A, B, *, out_dtype=None, out=None):
        return mm(*noted(A, B, out_dtype), out=out)

    def spy_addmm(total, A, B, *, out_dtype=None, out=None):
        return addmm(total, *noted(A, B, out_dtype), out=out)

    monkeypatch.setattr(torch, "mm", spy_mm)
    monkeypatch.setattr(torch, "addmm", spy_addmm)
    monkeypatch.setattr(torch.Tensor, "addmm_", lambda total, A, B: addmm_(total, *noted(A, B)))
    monkeypatch.setattr(dispatch, "multiplies_bfloat16", lambda device: True)
    return seen


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_autocast_decides_the_operands_of_forward_and_of_a_backward_outside(name, compiled, operands):
    torch.use_deterministic_algorithms(False)  # its NaN filling is not traced
    torch._dynamo.reset()
    given = matrices(name)
    function = torch.compile(summed(name), backend="aot_eager", fullgraph=True) if compiled else summed(name)
    for enabled, expected in ((True, BF16), (False, F32)):
        operands.clear()
        with torch.autocast("cpu", BF16, enabled=enabled):
            value = function(*given)
        assert operands == {expected}
        operands.clear()
        value.backward(retain_graph=True)
        assert operands <= {expected}
        if not compiled:
            # Weighted sums gave away the gradients of their first sweep: the second backward sweeps again.
            operands.clear()
            value.backward()
            assert operands == {expected}


@pytest.mark.parametrize(("ours", "theirs", "expected"), [(BF16, F32, F32), (F32, BF16, F32), (BF16, F16, BF16)])
def test_pairs_multiply_in_the_wider_type(ours, theirs, expected, operands):
    summed("pair_lse_sum")(*matrices("pair_lse_sum", ours, theirs)).backward()
    assert operands == {expected}


@pytest.fixture
def settings_of_products():
    """PyTorch's settings of float32 products, all of which a test may change."""
    yield
    torch.backends.fp32_precision = "none"
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.usefixtures("settings_of_products")
def test_either_setting_of_float32_products_is_read(device):
    backend = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    device = torch.device(device)
    for value, exact in (("highest", True), ("high", False), ("medium", False)):
        torch.set_float32_matmul_precision(value)
        assert exact_float32_products(device) == exact
    for value, exact in (("ieee", True), ("tf32", False), ("none", True)):
        backend.matmul.fp32_precision = value
        assert exact_float32_products(device) == exact
    torch.backends.fp32_precision = "tf32"  # for all backends without a setting of their own
    assert not exact_float32_products(device)


@pytest.mark.usefixtures("settings_of_products")
def test_how_fused_kernels_multiply_float32():
    device = torch.device("cuda")
    assert triton_device.input_precision(device) == "ieee"
    torch.set_float32_matmul_precision("high")  # TF32 is allowed, and used
    assert triton_device.input_precision(device) == "tf32"


@pytest.mark.usefixtures("settings_of_products")
def test_the_newer_setting_makes_no_op_fail():
    """The getter of the older setting raises then."""
    torch.backends.mkldnn.matmul.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    X = torch.randn(B, D)
    margins = {"positive_margin": 0.5, "negative_margin": 1.0, "distance": "euclidean"}
    half = torch.tensor(0.5)
    value = ops.pair_hinge_sum(X, torch.arange(B) % 3, None, None, half, half, **margins)
    assert value.isfinite()


@pytest.mark.parametrize("name", [*PRODUCTS, "similarity"])
def test_autocast_of_the_cpu_changes_no_second_derivative(name):
    given = matrices(name)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", BF16, enabled=enabled):
            gradients = torch.autograd.grad(summed(name)(*given), given, create_graph=True)
            squares = sum(gradient.square().sum() for gradient in gradients)
            # PyTorch's own backward of a product would round under autocast.
            with torch.autocast("cpu", enabled=enabled and name != "similarity"):
                found.append(torch.autograd.grad(squares, given, allow_unused=True))
    for mine, exact in zip(*found, strict=True):
        if exact is not None:
            torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-6)
