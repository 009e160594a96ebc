"""Scaled similarities and the nearest of a gallery, called by address, against numpy. No torch in here."""

import numpy as np
import pytest

SUFFIX = {np.float32: "f32", np.float64: "f64"}
DTYPES = [np.float32, np.float64]
# (rows, columns, k): one of each, odd sizes, more neighbours than there are, whole blocks and one more, many of all.
NEAREST = [(1, 1, 1), (7, 13, 5), (7, 13, 20), (5, 64, 64), (4, 129, 3), (3, 1000, 200), (2, 5000, 1500)]
# (rows, columns, D)
SCALED = [(1, 1, 1), (7, 13, 5), (13, 7, 3), (5, 16, 8), (9, 33, 64), (67, 300, 96)]
PAD = 3


def poisoned(S, rest):
    """An array full of ``rest``, and S as a view inside it."""
    around = np.full((S.shape[0] + 2, S.shape[1] + 2 * PAD), rest, S.dtype)
    inside = around[1:-1, PAD:-PAD]
    inside[:] = S
    return around, inside


def stride_of(view):
    return view.strides[0] // view.itemsize


class Nearest:
    """The k nearest so far; the rows before and after are not to be touched."""

    def __init__(self, native, dtype, rows, k, threads=2):
        self.function = getattr(native, f"nearest_update_{SUFFIX[dtype]}")
        self.k, self.threads = k, threads
        self.all_values, self.all_indices = np.full((rows + 2, k), np.nan, dtype), np.full((rows + 2, k), -7)
        self.values, self.indices = self.all_values[1:-1], self.all_indices[1:-1]
        self.values[:], self.indices[:] = -np.inf, -1

    def update(self, S, first=0, excluded=None):
        self.function(
            S=S.ctypes.data,
            row_stride=stride_of(S),
            rows=S.shape[0],
            columns=S.shape[1],
            first_column=first,
            excluded=0 if excluded is None else excluded.ctypes.data,
            k=self.k,
            values=self.values.ctypes.data,
            indices=self.indices.ctypes.data,
            threads=self.threads,
        )

    def check(self, S, excluded=None):
        values, indices = nearest_oracle(S, self.k, excluded)
        np.testing.assert_array_equal(self.indices, indices)
        np.testing.assert_array_equal(self.values, values)
        assert np.isnan(self.all_values[[0, -1]]).all()
        assert (self.all_indices[[0, -1]] == -7).all()


def nearest_oracle(S, k, excluded=None):
    """Largest first, of equal ones the lower index first; -inf and -1 where there are fewer than k."""
    values, indices = np.full((len(S), k), -np.inf, S.dtype), np.full((len(S), k), -1)
    for row, s in enumerate(S):
        allowed = s > -np.inf
        if excluded is not None and 0 <= excluded[row] < len(s):
            allowed[excluded[row]] = False
        candidates = np.flatnonzero(allowed)
        order = candidates[np.argsort(-s[candidates], kind="stable")][:k]
        values[row, : len(order)], indices[row, : len(order)] = s[order], order
    return values, indices


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "k"), NEAREST)
@pytest.mark.parametrize("chunk", [5, 64, 10_000])
@pytest.mark.parametrize("ties", [False, True])
def test_nearest_of_all_chunks(native, dtype, rows, columns, k, chunk, ties):
    rng = np.random.default_rng([rows, columns, k])
    S = rng.normal(0, 0.3, (rows, columns)).astype(dtype)
    if ties:
        S = np.round(S, 1)
    excluded = rng.integers(-1, columns, rows)
    for skip in (None, excluded):
        around, inside = poisoned(S, np.inf)  # larger than all: one that is read would be kept
        nearest = Nearest(native, dtype, rows, k)
        for first in range(0, columns, chunk):
            nearest.update(inside[:, first : first + chunk], first, skip)
        nearest.check(S, skip)
        np.testing.assert_array_equal(inside, S)
        assert np.isinf(around).sum() == around.size - S.size


@pytest.mark.parametrize("order", [1, -1])
def test_sorted_galleries(native, order):
    """Every candidate enters, or none after the first k."""
    S = np.tile(np.linspace(-1, 1, 3000)[::order], (2, 1))
    nearest = Nearest(native, np.float64, 2, 1200)
    nearest.update(S)
    nearest.check(S)


def test_what_is_not_a_similarity_is_not_kept(native):
    S = np.random.default_rng(0).normal(0, 0.3, (3, 150))
    S[:, ::3], S[:, 1::7], S[:, 70] = np.nan, -np.inf, np.inf
    S[2] = np.nan
    nearest = Nearest(native, np.float64, 3, 130)
    nearest.update(S)
    nearest.check(S)
    assert nearest.indices[0, 0] == 70
    assert (nearest.indices[2] == -1).all()


def test_the_excluded_index_is_of_the_gallery(native):
    S = np.array([[3.0, 2.0, 1.0]] * 4)
    excluded = np.array([10, 11, 0, -1])
    nearest = Nearest(native, np.float64, 4, 2)
    nearest.update(S, 10, excluded)
    assert nearest.indices.tolist() == [[11, 12], [10, 12], [10, 11], [10, 11]]


def test_no_rows_and_no_columns(native):
    nearest = Nearest(native, np.float32, 2, 3)
    nearest.update(np.ones((2, 0), np.float32))
    nearest.update(np.ones((0, 2), np.float32))
    nearest.check(np.ones((2, 0), np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nearest_do_not_depend_on_the_threads(native, dtype):
    S = np.round(np.random.default_rng(0).normal(0, 0.3, (50, 2000)), 2).astype(dtype)
    results = []
    for threads in (1, 3, 3):
        nearest = Nearest(native, dtype, 50, 10, threads)
        nearest.update(S)
        nearest.check(S)
        results.append(nearest.values.tobytes() + nearest.indices.tobytes())
    assert len(set(results)) == 1


def scale(native, S, P, row_scale, threads=2):
    """S scaled in place; returns the inverse norms."""
    inverse_norm = np.full(len(P) + 1, np.nan, P.dtype)
    inverse_norm[-1] = -7
    getattr(native, f"scale_similarities_{SUFFIX[P.dtype.type]}")(
        S=S.ctypes.data,
        row_stride=stride_of(S),
        rows=S.shape[0],
        P=P.ctypes.data,
        columns=P.shape[0],
        D=P.shape[1],
        row_scale=0 if row_scale is None else row_scale.ctypes.data,
        inverse_norm=inverse_norm.ctypes.data,
        threads=threads,
    )
    assert inverse_norm[-1] == -7
    return inverse_norm[:-1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "D"), SCALED)
@pytest.mark.parametrize("with_row_scale", [False, True])
def test_products_become_cosines(native, dtype, rows, columns, D, with_row_scale):
    rng = np.random.default_rng([rows, columns, D])
    X = rng.normal(0, 1, (rows, D)).astype(dtype)
    P = (rng.normal(0, 1, (columns, D)) * np.exp(rng.normal(0, 3, (columns, 1)))).astype(dtype)
    P[columns // 2] = 0
    row_scale = (1 / np.linalg.norm(X, axis=1)).astype(dtype) if with_row_scale else None
    products = X @ P.T
    around, inside = poisoned(products, np.nan)
    inverse_norm = scale(native, inside, P, row_scale)

    norm = np.linalg.norm(P.astype(np.float64), axis=1)
    expected = np.divide(1, norm, out=np.zeros(columns), where=norm > 0)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(inverse_norm, expected, rtol=(D + 4) * eps)
    row = np.ones(rows) if row_scale is None else row_scale.astype(np.float64)
    np.testing.assert_allclose(
        inside, products.astype(np.float64) * row[:, None] * expected, rtol=(D + 8) * eps, atol=0
    )
    assert np.isnan(around).sum() == around.size - products.size


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_are_those_of_normalize_rows(native, dtype):
    """The same bits, at both ends of the type as well."""
    rng = np.random.default_rng(0)
    P = rng.normal(0, 1, (40, 33)).astype(dtype)
    P[3] *= dtype(1e25)
    P[4] *= dtype(1e-10)
    P[5] *= dtype(1e-14)
    P[6] = 0
    U, expected = np.empty_like(P), np.empty(40, dtype)
    getattr(native, f"normalize_rows_{SUFFIX[dtype]}")(P.ctypes.data, U.ctypes.data, expected.ctypes.data, 40, 33, 1)
    assert scale(native, np.ones((2, 40), dtype), P, None).tobytes() == expected.tobytes()
    assert (expected[5:7] == 0).all()
    assert (expected[3:5] > 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_makes_its_column_nan(native, bad):
    S, P = np.ones((3, 20)), np.ones((20, 4))
    P[7, 2] = bad
    inverse_norm = scale(native, S, P, None)
    others = np.arange(20) != 7
    assert np.isnan(inverse_norm[7])
    assert np.isnan(S[:, 7]).all()
    np.testing.assert_array_equal(S[:, others], 0.5)
    np.testing.assert_array_equal(inverse_norm[others], 0.5)


def test_nothing_to_scale(native):
    scale(native, np.ones((0, 5)), np.ones((5, 2)), None)
    scale(native, np.ones((3, 0)), np.ones((0, 2)), None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1000, 1008])
def test_cosines_do_not_depend_on_the_threads(native, dtype, columns):
    rng = np.random.default_rng(0)
    products = rng.normal(0, 1, (50, columns)).astype(dtype)
    P, row_scale = rng.normal(0, 1, (columns, 70)).astype(dtype), rng.random(50).astype(dtype)
    results = []
    for threads in (1, 3, 3):
        S = products.copy()
        results.append(scale(native, S, P, row_scale, threads).tobytes() + S.tobytes())
    assert len(set(results)) == 1
