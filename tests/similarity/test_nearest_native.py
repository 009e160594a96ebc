"""The nearest of a gallery, called by address, against numpy. No torch in here."""

import numpy as np
import pytest

SUFFIX = {np.float32: "f32", np.float64: "f64"}
DTYPES = [np.float32, np.float64]
# (rows, columns, k): one of each, odd sizes, more neighbours than there are, whole blocks and one more, many of all.
NEAREST = [(1, 1, 1), (7, 13, 5), (7, 13, 20), (5, 64, 64), (4, 129, 3), (3, 1000, 200), (2, 5000, 1500)]
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
