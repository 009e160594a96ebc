"""Unit rows and their Jacobian in native CUDA against eager: on the GPU where there is one, in emulation everywhere."""

import pytest
import torch

from robustdml_ops.rows.eager import EagerRows
from robustdml_ops.rows.native import NativeRows

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
