"""Cosines in Triton: on the GPU, or in Triton's interpreter on the CPU."""

import pytest
import torch

from robustdml_ops.ops import similarity
from robustdml_ops.ops.similarity.backends import BACKENDS
from tests.nightly import nightly_but
from tests.similarity.test_similarity import assert_rows_without_a_direction, cosines, matrices
from tests.triton_here import DEVICE, MARKS

TRITON = BACKENDS["triton"]

pytestmark = MARKS
# The interpreter's products of bfloat16 and float16 are not the device's.
OPERANDS = [torch.float32, torch.bfloat16, torch.float16] if DEVICE.type == "cuda" else [torch.float32]
SHAPES = [(1, 1, 1), (5, 7, 3), (33, 65, 40), (130, 70, 17), (600, 70, 130)]


@pytest.mark.parametrize("result", OPERANDS)
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("shape", nightly_but(SHAPES[1::3], SHAPES), ids=str)
def test_values(shape, operand, result):
    X, P = matrices(*shape, operand, DEVICE)
    S = similarity(X, P, dtype=result, backend="triton")
    assert S.dtype == result
    torch.testing.assert_close(S.double(), cosines(X, P), rtol=0, atol=4 * torch.finfo(result).eps)


@pytest.mark.parametrize("layout", ["rows", "columns", "every other"])
def test_any_layout(layout):
    X, P = matrices(33, 20, 12, device=DEVICE)
    if layout == "columns":
        X, P = (matrix.t().contiguous().t() for matrix in (X, P))
    elif layout == "every other":
        X, P = X[::2], P[:, ::2].clone().repeat(1, 2)[:, ::2]
        X = X[:, : P.shape[1]]
    torch.testing.assert_close(similarity(X, P, backend="triton").double(), cosines(X, P), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, on NaN and inf
def test_rows_of_zeros_and_what_is_not_finite():
    assert_rows_without_a_direction("triton", DEVICE)


def test_what_the_kernel_leaves_to_a_product():
    X, P = matrices(4, 6, 3, torch.float64, DEVICE)
    S = torch.full_like(X @ P.t(), -9.0)
    assert not TRITON.fused(X, P, S, "ieee")
    assert (S == -9).all()
    torch.testing.assert_close(similarity(X, P, backend="triton").double(), cosines(X, P), rtol=0, atol=1e-6)


def test_gradients_of_proxies_by_columns():
    """PyTorch Metric Learning's parameters (D, C), transposed."""
    X, P, G = matrices(5, 11, 8)[0], torch.randn(8, 11).t(), torch.randn(5, 11, device=DEVICE)
    X, P = (rows.detach().to(DEVICE, torch.float32).requires_grad_() for rows in (X, P))
    assert P.stride(0) == 1
    found, expected = (
        torch.autograd.grad(similarity(X, P, backend=backend), (X, P), G) for backend in ("triton", "eager")
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
