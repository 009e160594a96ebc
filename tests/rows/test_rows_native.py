"""The native functions of rows called by address on host memory: the CPU's in both layouts, and CUDA's in emulation.

No torch in here, so that the sanitized build runs these tests in seconds.
"""

import numpy as np
import pytest

SUFFIX = {np.float32: "f32", np.float64: "f64"}
# A single row or column, sizes around vectors and blocks, no column at all.
SHAPES = [(1, 1), (1, 7), (3, 7), (9, 128), (33, 515), (300, 5), (129, 1), (4, 0)]


class Cpu:
    """Matrices by rows or by columns, which lie in larger ones: their strides are longer than a row or a column."""

    def __init__(self, module, columns, threads=2):
        self.module, self.columns, self.threads = module, columns, threads

    def room(self, values):
        """A copy of a matrix in this layout, NaN around it, and how the module is given it."""
        n, D = values.shape
        large = np.full((D + 1, n + 3) if self.columns else (n + 1, D + 3), np.nan, values.dtype)
        view = large[:D, :n].T if self.columns else large[:n, :D]
        view[:] = values
        return view, (large.ctypes.data, *(stride // large.itemsize for stride in view.strides))

    def call(self, name, matrices, inverse_norm):
        rooms = [self.room(matrix) for matrix in matrices]
        function = getattr(self.module, f"{name}_{SUFFIX[matrices[0].dtype.type]}")
        function(*(given for _, given in rooms), inverse_norm.ctypes.data, *matrices[0].shape, self.threads)
        return [view for view, _ in rooms]


class Emulated:
    """The CUDA kernels, built for the host."""

    def __init__(self, module):
        self.module = module

    def call(self, name, matrices, inverse_norm):
        copies = [matrix.copy() for matrix in matrices]
        suffix = SUFFIX[matrices[0].dtype.type]
        kernel = f"{name}_cuda_{suffix}" if name.endswith("backward") else f"{name}_cuda_{suffix}_{suffix}"
        given = [array.ctypes.data for array in (*copies, inverse_norm)]
        getattr(self.module, kernel)(*given, *matrices[0].shape, 0)
        return copies


@pytest.fixture(params=["rows", "columns", "emulated"])
def device(request):
    if request.param == "emulated":
        return Emulated(request.getfixturevalue("emulated"))
    return Cpu(request.getfixturevalue("native"), request.param == "columns")


@pytest.fixture(params=["rows", "columns"])
def cpu(request, native):
    return Cpu(native, request.param == "columns")


def rows(n, D, dtype):
    """Random rows, some of them zero or of another size."""
    P = np.random.default_rng(n * D).normal(0, 1, (n, D)).astype(dtype)
    if n >= 9:
        P[0], P[2], P[3] = 0, P[2] * dtype(1e6), P[3] * dtype(1e-6)
    return P


def unit(P):
    P = P.astype(np.float64)
    norm = np.sqrt((P**2).sum(1))
    inverse = np.divide(1, norm, where=norm > 0, out=np.zeros_like(norm))
    return P * inverse[:, None], inverse


@pytest.mark.parametrize("dtype", SUFFIX)
@pytest.mark.parametrize(("n", "D"), SHAPES)
def test_unit_rows_and_their_jacobian(device, n, D, dtype):
    P, inverse_norm = rows(n, D, dtype), np.full(n, np.nan, dtype)
    eps = np.finfo(dtype).eps
    _, U = device.call("normalize_rows", [P, np.full_like(P, np.nan)], inverse_norm)
    expected_U, expected_inverse = unit(P)
    np.testing.assert_allclose(U, expected_U, rtol=8 * eps, atol=0)
    np.testing.assert_allclose(inverse_norm, expected_inverse, rtol=8 * eps, atol=0)
    G = np.random.default_rng(1).normal(0, 1, (n, D)).astype(dtype)
    dP, _ = device.call("normalize_rows_backward", [G, np.ascontiguousarray(U)], inverse_norm)
    expected = (G - (G * expected_U).sum(1, keepdims=True) * expected_U) * expected_inverse[:, None]
    # Differences of numbers of the gradient's size, scaled by the row's.
    assert np.all(np.abs(dP - expected) <= 32 * np.sqrt(D + 1) * eps * expected_inverse[:, None])


@pytest.mark.parametrize("dtype", SUFFIX)
@pytest.mark.parametrize(("n", "D"), SHAPES)
def test_norms_and_projection_of_rows_as_they_are(cpu, n, D, dtype):
    P, inverse_norm = rows(n, D, dtype), np.full(n, np.nan, dtype)
    eps = np.finfo(dtype).eps
    cpu.call("inverse_norms", [P], inverse_norm)
    expected_U, expected_inverse = unit(P)
    np.testing.assert_allclose(inverse_norm, expected_inverse, rtol=8 * eps, atol=0)
    G = np.random.default_rng(1).normal(0, 1, (n, D)).astype(dtype)
    dP, _ = cpu.call("project_rows", [G, P], inverse_norm)
    expected = G - (G * expected_U).sum(1, keepdims=True) * expected_U
    assert np.all(np.abs(dP - expected) <= 32 * np.sqrt(D + 1) * eps)


def test_nan_row_stays_nan(device):
    P = np.ones((3, 5), np.float32)
    P[1, 2] = np.nan
    inverse_norm = np.zeros(3, np.float32)
    _, U = device.call("normalize_rows", [P, np.zeros_like(P)], inverse_norm)
    assert np.isnan(U[1]).all()
    assert np.isnan(inverse_norm[1])
    assert np.isfinite(U[[0, 2]]).all()


@pytest.mark.parametrize("columns", [False, True])
def test_any_number_of_threads_gives_the_same_bits(native, columns):
    P, G = rows(700, 130, np.float32), rows(700, 130, np.float32)[::-1].copy()
    results = []
    for threads in (1, 2, 3):
        device, inverse_norm = Cpu(native, columns, threads), np.zeros(700, np.float32)
        device.call("inverse_norms", [P], inverse_norm)
        results.append((inverse_norm, device.call("project_rows", [G, P], inverse_norm)[0]))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)
