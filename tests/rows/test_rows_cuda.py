"""Unit rows and their Jacobian in native CUDA against eager: on the GPU where there is one, in emulation everywhere."""

import pytest
import torch

from robustdml_ops.engine.rows.eager import EagerRows
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import Similarities

NATIVE, EAGER = NativeRows(), EagerRows()
ELEMENTS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# float64 rows need float64 results.
PAIRS = [(P, U) for P in ELEMENTS for U in ELEMENTS if torch.float64 not in (P, U) or U is torch.float64]


@pytest.mark.parametrize(("P_dtype", "U_dtype"), PAIRS, ids=str)
def test_rows(device, P_dtype, U_dtype):
    compute = torch.float64 if U_dtype == torch.float64 else torch.float32
    generator = torch.Generator().manual_seed(0)
    P = torch.randn(45, 131, generator=generator).to(P_dtype)
    P[3], P[4, 5] = 0, torch.nan
    P = P.to(device)
    results = []
    for backend in (NATIVE, EAGER):
        U = torch.empty(45, 131, dtype=U_dtype, device=device)
        inverse_norm = torch.empty(45, dtype=compute, device=device)
        backend.normalize_rows(P, U, inverse_norm)
        G = torch.randn(45, 131, generator=torch.Generator().manual_seed(1), dtype=compute).to(device)
        backend.normalize_rows_backward(G, U, inverse_norm)
        assert U[4].isnan().all()
        assert (U[3] == 0).all()
        assert (G[3] == 0).all()
        results.append((U, inverse_norm, G))
    eps = torch.finfo(compute).eps
    for mine, theirs, tolerance in zip(*results, (torch.finfo(U_dtype).eps, 8 * eps, 64 * eps), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_lie_apart(device, dtype):
    """Proxies may come as a view: every other row, or a transpose."""
    P = torch.randn(20, 33).to(dtype).to(device)
    for view in (P[::2], P.t()):
        U = torch.empty(*view.shape, dtype=dtype, device=device)
        inverse_norm = torch.empty(len(view), dtype=torch.float32, device=device)
        NATIVE.normalize_rows(view, U, inverse_norm)
        expected = torch.nn.functional.normalize(view.float(), dim=1)
        torch.testing.assert_close(U.float(), expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_of_proxies_by_columns(device, dtype, small_chunks):
    """The kernels write rows; the gradient lies as the proxies do."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(9, 12, generator=generator).to(device)
    P = torch.randn(12, 20, generator=generator).to(device, dtype).t()
    gradients = []
    for backend in (NATIVE, EAGER):
        similarities = Similarities(X, P, torch.float32, torch.float32, backend)
        similarities.want_gradients(True, True)
        for chunk in similarities:
            chunk.S.sin_()  # stands for an epilogue
            similarities.backward(chunk)
        gradients.append(similarities.gradients())
    (dX, dP), (expected_dX, expected_dP) = gradients
    assert dP.stride() == P.stride()
    tolerance = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(dX, expected_dX, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dP, expected_dP, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_at_the_ends_of_the_type(device, dtype):
    """Elements that are finite and a norm that is not; and where zero rows begin: below the smallest normal number."""
    limits = torch.finfo(dtype)
    P = torch.zeros(5, 40, dtype=dtype)
    P[0] = limits.max
    P[1, 7], P[2, 7] = limits.tiny, limits.tiny / 2
    P[3], P[4] = (torch.randn(2, 40, dtype=dtype).T * torch.tensor([limits.tiny, limits.max / 8], dtype=dtype)).T
    U = torch.empty(5, 40, dtype=dtype, device=device)
    inverse_norm = torch.empty(5, dtype=dtype, device=device)
    NATIVE.normalize_rows(P.to(device), U, inverse_norm)
    U, inverse_norm = U.cpu(), inverse_norm.cpu()
    assert inverse_norm[1] == 1 / limits.tiny
    assert inverse_norm[2] == 0
    assert 0 < inverse_norm[0] < limits.tiny
    expected = torch.nn.functional.normalize(P.double() / P.double().abs().amax(1, keepdim=True), dim=1).to(dtype)
    expected[2] = 0
    torch.testing.assert_close(U, expected, rtol=16 * limits.eps, atol=0)
