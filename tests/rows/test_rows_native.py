"""Native unit rows and their Jacobian, on the CPU and in CUDA, which is emulated where there is no GPU."""

import math

import pytest
import torch

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.rows.backends import NativeRows, RowsBackend
from robustdml_ops.engine.similarity_chunks import Similarities, Swept

NATIVE, EAGER = NativeRows(), RowsBackend()
# A single row or column, sizes around vectors and blocks, no column at all.
SHAPES = [(1, 1), (1, 7), (3, 7), (9, 128), (33, 515), (300, 5), (129, 1), (4, 0)]
DTYPES = [torch.float32, torch.float64]
ELEMENTS = [*DTYPES, torch.bfloat16, torch.float16]
# float64 rows need float64 results.
PAIRS = [(P, U) for P in ELEMENTS for U in ELEMENTS if torch.float64 not in (P, U) or U is torch.float64]


@pytest.fixture
def cpu(native, monkeypatch):
    """The CPU's functions serve."""
    monkeypatch.setattr(module, "library", native)


def rows(n, D, dtype):
    """Random rows, some of them zero, of another size, or with NaN."""
    P = torch.randn(n, D, dtype=dtype)
    if n >= 9:
        P[0], P[2], P[3], P[5, 0] = 0, P[2] * 1e6, P[3] * 1e-6, torch.nan
    return P


def within(values, columns):
    """A copy of a matrix by rows or by columns in a larger one of NaN: its stride is longer than a row or a column."""
    n, D = values.shape
    large = values.new_full((D + 1, n + 3) if columns else (n + 1, D + 3), torch.nan)
    return (large[:D, :n].t() if columns else large[:n, :D]).copy_(values)


def unit(P):
    norm = P.double().norm(dim=1)
    inverse = norm.reciprocal().masked_fill(norm == 0, 0)
    return P.double() * inverse[:, None], inverse


def close(found, expected, roundings, eps):
    torch.testing.assert_close(found.double(), expected, rtol=roundings * eps, atol=0, equal_nan=True)


def assert_projected(found, G, U, scale, eps):
    """(G − (G·U) U) · scale: differences of numbers of the gradient's size, scaled by the row's."""
    expected = (G - (G * U).sum(1, keepdim=True) * U) * scale[:, None]
    error = (found.double() - expected).abs()
    assert torch.equal(error.isnan(), expected.isnan())
    assert not (error > 32 * (G.shape[1] + 1) ** 0.5 * eps * scale[:, None]).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_unit_rows_and_their_jacobian(device, shape, columns, dtype):
    P, eps = within(rows(*shape, dtype).to(device), columns), torch.finfo(dtype).eps
    U, inverse_norm = torch.empty_like(P), torch.empty(len(P), dtype=dtype, device=device)
    G = torch.randn(*shape, dtype=dtype, device=device)
    gradient = G.clone()
    if module.on_gpu(P):  # kernels write rows
        U = torch.empty(shape, dtype=dtype, device=device)
    else:
        U, gradient = within(U, columns), within(gradient, columns)
    NATIVE.normalize_rows(P, U, inverse_norm)
    expected_U, expected_inverse = unit(P)
    close(U, expected_U, 8, eps)
    close(inverse_norm, expected_inverse, 8, eps)
    NATIVE.normalize_rows_backward(gradient, U, inverse_norm)
    assert_projected(gradient, G, expected_U, expected_inverse, eps)
    if not module.on_gpu(P):  # lanes take the norms alone, and project on rows as they are
        norms, gradient = torch.empty_like(inverse_norm), within(G, columns)
        NATIVE.inverse_norms(P, norms)
        close(norms, expected_inverse, 8, eps)
        NATIVE.finish(gradient, P, norms, False)
        assert_projected(gradient, G, expected_U, torch.ones_like(expected_inverse), eps)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 4), (0, 2)], ids=str)
def test_cosines_of_single_rows(shape, columns, dtype):
    """Of any scale: 0 of zero rows, ∞ for NaN, and −∞ where a place is no row's."""
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    P, X = within(rows(9, 33, dtype), columns), within(torch.randn(shape[0], 33, dtype=compute), not columns)
    P[1], P[7], X[:3] = P[1] * 1e25, P[7] * 1e-25, X[:3] * 1e-30
    places = torch.arange(-1, X[:, :1].expand(-1, math.prod(shape[1:])).numel() - 1).remainder(11).view(shape) - 1
    unit_P, unit_X = unit(P)[0], unit(X)[0]
    expected = (unit_P[places.clamp(0, 8)] * unit_X.view(len(X), *(1,) * (len(shape) - 1), 33)).sum(-1)
    expected = expected.nan_to_num(torch.inf).masked_fill((places < 0) | (places > 8), -torch.inf)
    for backend in (NATIVE, EAGER):
        found = backend.cosines_at(P, X, places)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=8 * torch.finfo(compute).eps)
    assert len(NATIVE.cosines_at(P[:0], X, places)) == len(EAGER.cosines_at(P[:0], X, places)) == len(X)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("columns", [False, True])
def test_any_number_of_threads_gives_the_same_bits(columns, threads):
    P, G, results = within(torch.randn(700, 130), columns), torch.randn(700, 130), []
    for count in (1, 2, 3):
        threads(count)
        inverse_norm, gradient = torch.empty(700), within(G, columns)
        NATIVE.inverse_norms(P, inverse_norm)
        NATIVE.finish(gradient, P, inverse_norm, False)
        own = NATIVE.cosines_at(P, G, torch.arange(700))
        results.append(torch.cat([inverse_norm[:, None], own[:, None], gradient], 1))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(("P_dtype", "U_dtype"), PAIRS, ids=str)
def test_kernels_read_and_write_any_type(cuda_device, P_dtype, U_dtype):
    compute = torch.float64 if U_dtype == torch.float64 else torch.float32
    P = within(torch.randn(45, 131).to(P_dtype), columns=True)
    P[3], P[4, 5] = 0, torch.nan
    results = []
    for backend in (NATIVE, EAGER):
        U = torch.empty(45, 131, dtype=U_dtype, device=cuda_device)
        inverse_norm = torch.empty(45, dtype=compute, device=cuda_device)
        backend.normalize_rows(P.to(cuda_device), U, inverse_norm)
        G = torch.randn(45, 131, generator=torch.Generator().manual_seed(1), dtype=compute).to(cuda_device)
        backend.normalize_rows_backward(G, U, inverse_norm)
        assert U[4].isnan().all()
        assert (U[3] == 0).all()
        assert (G[3] == 0).all()
        results.append((U, inverse_norm, G))
    eps = torch.finfo(compute).eps
    for mine, theirs, tolerance in zip(*results, (torch.finfo(U_dtype).eps, 8 * eps, 64 * eps), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_of_proxies_by_columns(cuda_device, dtype, small_chunks):
    """The kernels write rows; the gradient lies as the proxies do."""
    X, P = torch.randn(9, 12).to(cuda_device), torch.randn(12, 20).to(cuda_device, dtype).t()
    gradients = []
    for backend in (NATIVE, EAGER):
        similarities = Similarities(X, Swept(P), torch.float32, torch.float32, backend)
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


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_at_the_ends_of_the_type(device, dtype, columns):
    """Elements that are finite and a norm that is not; and where zero rows begin: below the smallest normal number."""
    limits = torch.finfo(dtype)
    P = torch.zeros(8, 40, dtype=dtype)
    P[0] = limits.max
    P[1, ::2], P[1, 1::2] = limits.max, -limits.max / 3
    P[2, 7], P[3, 7] = limits.tiny, limits.tiny / 2
    P[4, 3], P[5, 4] = torch.inf, torch.nan
    P[6], P[7] = torch.randn(40, dtype=dtype) * limits.tiny, torch.randn(40, dtype=dtype) * (limits.max / 8)
    P = P.t().contiguous().t().to(device) if columns else P.to(device)
    expected = torch.nn.functional.normalize(P.double() / P.double().abs().amax(1, keepdim=True), dim=1).to(dtype)
    expected[3] = 0
    finite = [0, 1, 2, 3, 6, 7]
    for backend in (NATIVE, EAGER):
        U = torch.empty(8, 40, dtype=dtype, device=device) if module.on_gpu(P) else torch.empty_like(P)
        inverse_norm = torch.empty(8, dtype=dtype, device=device)
        backend.normalize_rows(P, U, inverse_norm)
        torch.testing.assert_close(U[finite], expected[finite], rtol=16 * limits.eps, atol=0)
        assert U[4:6].isnan().any(1).all()
        assert 0 < inverse_norm[0] < limits.tiny
        assert inverse_norm[2:4].tolist() == [1 / limits.tiny, 0]
        assert inverse_norm[4 + module.on_gpu(P) : 6].isnan().all()  # in CUDA inf has 1 / inf = 0
