"""The native functions of the von Mises–Fisher distribution, called by address: the CPU's, and CUDA's in emulation.

No torch in here: the constants of an order come from mpmath.
"""

import math

import mpmath as mp
import numpy as np
import pytest
from vmf_oracle import exact

FUNCTIONS = ("log_0f1", "peak", "log_i", "ratio", "ratio_derivative")
SUFFIX = {np.float32: "f32", np.float64: "f64"}
# Every pair of lengths that is compiled: order, radius of the power series, terms of the two series.
LENGTHS = {
    np.float64: [(0.0, 32, 10, 48), (0.25, 32, 10, 48), (9.5, 32, 10, 48), (63.0, 0, 10, 8), (255.0, 0, 6, 8)],
    np.float32: [(0.0, 14, 5, 24), (0.25, 14, 5, 24), (9.5, 14, 5, 24), (31.0, 0, 5, 8), (63.0, 0, 3, 8)],
}
CASES = [(dtype, *lengths) for dtype, cases in LENGTHS.items() for lengths in cases]
TOLERANCE = {np.float64: 2e-14, np.float32: 4e-7}
DERIVATIVE_TOLERANCE = {np.float64: 1e-11, np.float32: 2e-4}  # what cancels in A' at small orders, near the branch


def order_of(module, dtype, v, radius, debye_terms, series_terms):
    base = max(v, 1.0)
    with mp.workdps(50):
        scale = mp.loggamma(mp.mpf(v) + 1)
        constant = scale - (v * mp.log(base) - v + mp.log(2 * mp.pi * base) / 2)
    smallest = 1.0 if dtype is np.float64 else 4.0
    return getattr(module, f"VmfOrder_{SUFFIX[dtype]}")(
        v=v,
        base=base,
        constant=float(constant),
        log_scale=float(scale + v * mp.log(2)),
        series_below=max(smallest, math.sqrt(max(0.0, radius**2 - v**2))),
        debye_terms=debye_terms,
        series_terms=series_terms,
    )


def on_cpu(module, function, order, kappa, out):
    name = f"vmf_{function}_{SUFFIX[kappa.dtype.type]}"
    getattr(module, name)(order, kappa.ctypes.data, out.ctypes.data, kappa.size, 2)


def on_emulated(module, function, order, kappa, out):
    name = f"vmf_{function}_cuda_{SUFFIX[kappa.dtype.type]}"
    getattr(module, name)(order, kappa.ctypes.data, out.ctypes.data, kappa.size, 0)


@pytest.fixture(params=["cpu", "emulated"])
def run(request):
    module = request.getfixturevalue("native" if request.param == "cpu" else "emulated")
    call = on_cpu if request.param == "cpu" else on_emulated

    def evaluate(function, lengths, kappa):
        out = np.full_like(kappa, np.nan)
        call(module, function, order_of(module, kappa.dtype.type, *lengths), kappa, out)
        return out

    return evaluate


def compiled(dtype):
    return FUNCTIONS if dtype is np.float64 else [name for name in FUNCTIONS if name != "log_i"]


@pytest.mark.parametrize(("dtype", "v", "radius", "debye_terms", "series_terms"), CASES)
def test_against_mpmath(run, dtype, v, radius, debye_terms, series_terms):
    kappa = np.geomspace(1e-5, 1e5, 61).astype(dtype)
    truth = [exact(v, float(k)) for k in kappa]
    for function in compiled(dtype):
        values = run(function, (v, radius, debye_terms, series_terms), kappa)
        tolerance = (DERIVATIVE_TOLERANCE if function == "ratio_derivative" else TOLERANCE)[dtype]
        for k, value, point in zip(kappa, values, truth, strict=True):
            right = getattr(point, function)
            scale = max(1, abs(right)) if function == "log_i" else abs(right)
            assert abs(mp.mpf(float(value)) - right) <= tolerance * scale, (function, k)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ends_of_the_range(run, dtype):
    kappa = np.array([0, np.inf, np.nan, -1, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal], dtype)
    lengths = LENGTHS[dtype][3]
    v = lengths[0]
    expected = {
        "log_0f1": [0, np.inf, np.nan, np.nan],
        "peak": [0, np.inf, np.nan, np.nan],
        "log_i": [-np.inf, np.inf, np.nan, np.nan],
        "ratio": [0, 1, np.nan, np.nan],
        "ratio_derivative": [1 / (2 * v + 2), 0, np.nan, np.nan],
    }
    for function in compiled(dtype):
        values = run(function, lengths, kappa)
        np.testing.assert_allclose(values[:4], expected[function], rtol=1e-6)
        assert np.isfinite(values[4:]).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_elements_do_not_depend_on_their_neighbours(run, dtype):
    kappa, lengths = np.geomspace(1e-5, 1e5, 61).astype(dtype), LENGTHS[dtype][2]
    for function in compiled(dtype):
        whole = run(function, lengths, kappa)
        one_by_one = np.concatenate([run(function, lengths, kappa[i : i + 1].copy()) for i in range(0, 61, 6)])
        np.testing.assert_allclose(whole[::6], one_by_one, rtol=1e-14 if dtype is np.float64 else 1e-5)
        assert np.isfinite(whole).all()


@pytest.mark.parametrize("count", [0, 1, 7, 300, 10_001])
def test_every_element_is_written_and_none_beyond(run, count):
    kappa = np.linspace(0, 200, count + 1)
    kappa[count] = np.nan  # a guard: it is not asked for
    lengths = LENGTHS[np.float64][2]
    whole = run("ratio", lengths, kappa[:count].copy())
    one_by_one = [run("ratio", lengths, kappa[i : i + 1].copy())[0] for i in range(0, count, 97)]
    np.testing.assert_allclose(whole[::97], one_by_one, rtol=1e-15)
    assert np.isfinite(whole).all()


def test_lengths_that_are_not_compiled_are_refused(native):
    order = order_of(native, np.float64, 3.0, 32, 7, 48)
    values = np.ones(1)
    with pytest.raises(ValueError, match="not compiled"):
        on_cpu(native, "ratio", order, values, values)
