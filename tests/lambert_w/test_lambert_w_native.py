"""Lambert's W and the confidences in the native module, called by address, against mpmath. No torch in here."""

import mpmath as mp
import numpy as np
import pytest

SUFFIX = {np.float32: "f32", np.float64: "f64"}
DTYPES = list(SUFFIX)
W_BAR, SIGMA_BAR = 3, 3.5  # relative errors in units of the type's epsilon


@pytest.fixture(params=["cpu", "emulated"])
def run(request):
    """run(name, arrays and numbers, outputs): the arrays by address."""
    emulated = request.param == "emulated"
    module = request.getfixturevalue("emulated" if emulated else "native")

    def call(name, *arguments, outputs=1):
        dtype, count = arguments[0].dtype.type, arguments[0].size
        results = [np.full(count, np.nan, dtype) for _ in range(outputs)]
        addresses = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in (*arguments, *results)]
        function = getattr(module, f"{name}_{'cuda_' if emulated else ''}{SUFFIX[dtype]}")
        function(*addresses, count, 0 if emulated else 2)
        return results[0] if outputs == 1 else results

    return call


def points(dtype):
    """From −1/e, from 1e-17 above it on, over the changes of the method to the ends of the range."""
    near = -1 / np.e + np.geomspace(1e-17, 0.4, 120)
    edges = np.array([-0.25, -1e-3, 1e-3, -1e-5, 1e-5])
    around = np.concatenate([edges * (1 + step) for step in (-1e-7, 0, 1e-7)])
    limits = np.finfo(dtype)
    sizes = np.geomspace(float(limits.smallest_subnormal), float(limits.max) / 2, 200)
    return np.concatenate([[-1 / np.e], near, around, sizes, -sizes[sizes < 0.36]]).astype(dtype)


def exact_w(x):
    with mp.workdps(40):
        x = mp.mpf(float(x))
        return mp.mpf(-1) if x < -mp.exp(-1) else mp.lambertw(x).real


def worst(values, truths, eps):
    with mp.workdps(40):
        errors = [abs(mp.mpf(float(v)) - t) / abs(t) for v, t in zip(values, truths, strict=True)]
    return float(max(errors)) / eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_against_mpmath(run, dtype):
    x = points(dtype)
    truth = [exact_w(value) for value in x]
    eps = np.finfo(dtype).eps
    normal = np.abs(x) >= np.finfo(dtype).tiny
    w = run("lambert_w", x)
    assert worst(w[normal], [t for t, keep in zip(truth, normal, strict=True) if keep], eps) <= W_BAR
    np.testing.assert_array_equal(w[~normal], x[~normal])  # x − x² rounds to x
    values, sigma = run("superloss", x, np.zeros(1, dtype), 0, 0.5, outputs=2)  # 2 lambda = 1
    with mp.workdps(40):
        sigmas, minima = zip(*((mp.exp(-t), t * (t + 2) / 2) for t in truth), strict=True)
    assert worst(sigma, sigmas, eps) <= SIGMA_BAR
    regular = (x > -0.3) & normal  # w + 2 keeps the error of w below
    assert worst(values[regular], [m for m, keep in zip(minima, regular, strict=True) if keep], eps) <= 5
    above = x >= 0
    ours = run("confidence", x[above].copy(), np.zeros(1, dtype), 0, 0.5)
    assert worst(ours, [s for s, keep in zip(sigmas, above, strict=True) if keep], eps) <= SIGMA_BAR


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(run, dtype):
    x = np.array([np.inf, -0.0, 0, np.nan, -0.4, -np.inf, np.nextafter(dtype(-1 / np.e), dtype(-1))], dtype)
    w = run("lambert_w", x)
    np.testing.assert_array_equal(w, [np.inf, 0, 0, np.nan, np.nan, np.nan, np.nan])
    assert np.signbit(w[1])
    assert run("lambert_w", np.array([-1 / np.e], dtype))[0] == pytest.approx(-1, abs=2e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_confidence_of_what_is_not_finite(run, dtype):
    inf, nan = np.inf, np.nan
    losses = np.array([5, inf, inf, -inf, nan, 1, 3, 3], dtype)
    thresholds = np.array([inf, inf, 2, 2, 2, nan, 3, -inf], dtype)
    sigma = run("confidence", losses, thresholds, 1, 1.0)
    np.testing.assert_array_equal(sigma, [1, 1, 0, 1, nan, nan, 1, 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_superloss_of_what_is_not_finite(run, dtype):
    losses = np.array([np.inf, -np.inf, np.nan, -1000], dtype)
    values, sigma = run("superloss", losses, np.zeros(1, dtype), 0, 1.0, outputs=2)
    np.testing.assert_allclose(values, [np.inf, -np.inf, np.nan, 1 - 1000 * np.e], rtol=1e-6)
    np.testing.assert_allclose(sigma, [0, np.e, np.nan, np.e], rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 7, 300, 10_001])
def test_every_element_is_written_and_none_beyond(run, count):
    losses = np.linspace(0, 20, count + 1)
    losses[count] = np.nan  # a guard: it is not asked for
    losses, thresholds = losses[:count].copy(), np.linspace(1, 2, count)
    whole = run("confidence", losses, thresholds, 1, 1.5)
    one_by_one = [
        run("confidence", losses[i : i + 1].copy(), thresholds[i : i + 1], 0, 1.5)[0] for i in range(0, count, 97)
    ]
    np.testing.assert_allclose(whole[::97], one_by_one, rtol=1e-15)
    assert np.isfinite(whole).all()
