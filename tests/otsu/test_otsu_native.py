"""The native cut, called by address: the CPU's, and CUDA's in emulation, against rational numbers. No torch in here."""

import numpy as np
import pytest
from otsu_oracle import check

SUFFIX = {np.float32: "f32", np.float64: "f64"}
DTYPES = list(SUFFIX)
ERROR = {np.float32: 2.5e-7, np.float64: 4e-15}  # of thresholds and means, relative to the largest value


@pytest.fixture(params=["cpu", "emulated"])
def cut(request):
    """cut(values (rows, n), min_group) -> one tuple of results a row."""
    emulated = request.param == "emulated"
    module = request.getfixturevalue("emulated" if emulated else "native")

    def call(values, min_group=2, threads=2):
        rows, n = values.shape
        dtype = values.dtype.type
        floats = [np.full(rows, np.nan, dtype) for _ in range(3)]
        counts = [np.full(rows, -7, np.int64) for _ in range(2)]
        found = np.zeros(rows, bool)
        outputs = [array.ctypes.data for array in (*floats, *counts, found)]
        name = f"otsu_cuda_{SUFFIX[dtype]}" if emulated else f"otsu_{SUFFIX[dtype]}"
        getattr(module, name)(values.ctypes.data, rows, n, min_group, *outputs, 0 if emulated else threads)
        threshold, low_mean, high_mean = floats
        index, excluded = counts
        return list(zip(threshold, index, low_mean, high_mean, found, excluded, strict=True))

    return call


def random_rows(rows, n, dtype, seed):
    """Ties, an offset, and what is not finite, each in some rows."""
    random = np.random.default_rng(seed)
    values = np.where(random.random((rows, 1)) < 0.5, random.integers(0, 4, (rows, n)), random.normal(size=(rows, n)))
    values = values + random.choice([0, -100, 1e4, 1e6], (rows, 1))
    values = np.where(random.random((rows, n)) < 0.03, random.choice([np.nan, np.inf, -np.inf], (rows, n)), values)
    return np.ascontiguousarray(values.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("min_group", [1, 2, 3])
def test_small_rows_against_rational_numbers(cut, dtype, min_group):
    for n in range(1, 12):
        values = random_rows(12, n, dtype, 100 * n + min_group)
        for row, result in zip(values, cut(values, min_group), strict=True):
            # Sums of full doubles are rounded to steps of 2⁻⁵¹ of their range.
            check(row, min_group, *result, eps=ERROR[dtype], exact=dtype is np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [31, 255, 256, 257, 300, 1000])
def test_longer_rows_against_rational_numbers(cut, dtype, n):
    values = random_rows(3, n, dtype, n)
    for row, result in zip(values, cut(values), strict=True):
        check(row, 2, *result, eps=ERROR[dtype], exact=False)


@pytest.mark.parametrize(("dtype", "n"), [(np.float32, 8192), (np.float32, 4097), (np.float64, 4096)])
def test_the_longest_rows_of_one_block(cut, dtype, n):
    values = np.concatenate([np.linspace(0, 1, n // 2), np.linspace(9, 10, n - n // 2)]).astype(dtype)[None]
    values = np.random.default_rng(0).permuted(values, axis=1)
    (result,) = cut(values)
    assert result[1] == n // 2
    assert 1 < result[0] < 9
    np.testing.assert_allclose(result[2:4], [0.5, 9.5], rtol=1e-5)


def test_longer_rows_than_a_block_holds_are_refused(emulated):
    with pytest.raises(ValueError, match="too long"):
        emulated.otsu_cuda_f32(0, 1, 8193, 2, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", ["largest", "smallest"])
def test_ends_of_the_range(cut, dtype, scale):
    limits = np.finfo(dtype)
    unit = limits.max if scale == "largest" else limits.smallest_subnormal * 16
    values = (np.array([[-1, -1, -0.75, 0.5, 1, 1]]) * unit).astype(dtype)
    ((threshold, index, *_),) = cut(values)
    assert index == 3
    assert -0.75 * unit < threshold < 0.5 * unit


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours_without_a_number_between(cut, dtype):
    for low in (dtype(1), dtype(-3), np.nextafter(dtype(2), dtype(0))):
        high = np.nextafter(low, dtype(np.inf))
        ((threshold, index, *_),) = cut(np.array([[low, high, low, high]], dtype))
        assert (threshold, index) == (low, 2)


def test_positive_and_negative_zero_are_one_value(cut):
    ((_, index, _, _, found, _),) = cut(np.array([[0.0, -0.0, 0.0, -0.0]]))
    assert not found
    assert index == 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 3, 11, 256, 9000])
def test_cut_and_confidence_in_one_call(native, dtype, n):
    values = random_rows(1, n, dtype, n)[0]
    suffix, floats, counts, found = SUFFIX[dtype], np.zeros(3, dtype), np.zeros(2, np.int64), np.zeros(1, bool)
    address, outputs = values.ctypes.data, [array.ctypes.data for array in (*floats[:, None], *counts[:, None], found)]
    getattr(native, f"otsu_{suffix}")(address, 1, n, 2, *outputs, 2)
    one_by_one, threshold, at_once = np.zeros(n, dtype), np.zeros(1, dtype), np.zeros(n, dtype)
    getattr(native, f"confidence_{suffix}")(address, outputs[0], 0, 0.1, one_by_one.ctypes.data, n, 2)
    getattr(native, f"otsu_confidence_{suffix}")(address, n, 2, 0.1, threshold.ctypes.data, at_once.ctypes.data, 2)
    assert threshold[0] == floats[0]
    np.testing.assert_array_equal(at_once, one_by_one)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [300, 9000, 300_000])
def test_threads_do_not_change_a_bit(native, dtype, n):
    """300 000 values are shared by the threads."""
    values = np.random.default_rng(n).normal(size=(1, n)).astype(dtype)
    results = []
    for threads in (1, 2, 5):
        floats, counts, found = np.zeros((3, 1), dtype), np.zeros((2, 1), np.int64), np.zeros(1, bool)
        outputs = [array.ctypes.data for array in (*floats, *counts, found)]
        getattr(native, f"otsu_{SUFFIX[dtype]}")(values.ctypes.data, 1, n, 2, *outputs, threads)
        results.append((floats.tobytes(), counts.tobytes(), found.tobytes()))
    assert results[0] == results[1] == results[2]
    i = int(counts[0, 0])
    ordered = np.sort(values[0]).astype(np.float64)
    groups = np.cumsum(ordered - ordered.mean())[:-1]
    places = np.arange(1, n)
    assert i == 1 + np.argmax(groups**2 / (places * (n - places)))
    np.testing.assert_allclose(floats[1:, 0], [ordered[:i].mean(), ordered[i:].mean()], rtol=1e-6)
