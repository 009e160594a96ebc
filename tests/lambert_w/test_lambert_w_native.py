"""Lambert's W and the confidences against mpmath, on the CPU and in CUDA, which is emulated where there is no GPU."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch

from robustdml_ops.ops.lambert_w.backends import BACKENDS

NATIVE = BACKENDS["native"]
DTYPES = (torch.float32, torch.float64)
INF, NAN = math.inf, math.nan
W_BAR, SIGMA_BAR = 3, 3.5  # relative errors in units of the type's epsilon


def compare(backend, dtype, device):
    """Against eager in float64."""
    ours, eager = BACKENDS[backend], BACKENDS["eager"]
    x = torch.cat(
        [-0.36787 + torch.logspace(-6, -0.5, 60), torch.logspace(-37, 30, 150), torch.linspace(-0.3, 0.3, 80)]
    )
    x = torch.cat([x, torch.tensor([torch.inf, torch.nan, -1.0, 0.0])]).to(dtype).to(device)
    bar = 4 * torch.finfo(dtype).eps

    def close(mine, theirs, tolerance=bar):
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance * 1e-30, equal_nan=True)

    close(ours.lambert_w(x), eager.lambert_w(x.double()))
    for tau in (torch.zeros(1), torch.linspace(0, 1e-3, len(x))):
        # 2 lambda is 1: x is not rounded but where tau is not 0, and W(x) feels it near -1/e alone.
        tau = tau.to(dtype).to(device)
        difference = (x - tau).double()
        close(ours.confidence(x, tau, 0.5), eager.confidence(difference, torch.zeros_like(difference), 0.5))
        value, sigma = ours.superloss(x, tau, 0.5)
        their_value, their_sigma = eager.superloss(difference, torch.zeros_like(difference), 0.5)
        close(sigma, their_sigma)
        far = difference > -0.3
        close(value[far], their_value[far], 4 * bar)
    assert ours.lambert_w(x[:0]).shape == (0,)


@pytest.fixture
def tensor(device):
    """tensor(values, dtype), where the functions run."""
    return lambda values, dtype: torch.tensor(values, dtype=dtype).to(device)


def points(dtype):
    """From −1/e, from 1e-17 above it on, over the changes of the method to the ends of the range."""
    near = -1 / np.e + np.geomspace(1e-17, 0.4, 120)
    edges = np.array([-0.25, -1e-3, 1e-3, -1e-5, 1e-5])
    around = np.concatenate([edges * (1 + step) for step in (-1e-7, 0, 1e-7)])
    limits = torch.finfo(dtype)
    sizes = np.geomspace(limits.tiny * limits.eps, limits.max / 2, 200)
    return torch.from_numpy(np.concatenate([[-1 / np.e], near, around, sizes, -sizes[sizes < 0.36]])).to(dtype)


def exact_w(x):
    with mp.workdps(40):
        x = mp.mpf(float(x))
        return mp.mpf(-1) if x < -mp.exp(-1) else mp.lambertw(x).real


def worst(values, truths, chosen, eps):
    """Largest relative error of the chosen values."""
    with mp.workdps(40):
        pairs = zip(values[chosen].tolist(), np.array(truths, object)[chosen.numpy()], strict=True)
        return float(max(abs(mp.mpf(value) - truth) / abs(truth) for value, truth in pairs)) / eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_mpmath(device, dtype):
    x, limits = points(dtype), torch.finfo(dtype)
    truth, normal = [exact_w(value) for value in x], x.abs() >= limits.tiny
    given, zero = x.to(device), torch.zeros(1, dtype=dtype, device=device)
    w = NATIVE.lambert_w(given).cpu()
    assert worst(w, truth, normal, limits.eps) <= W_BAR
    assert torch.equal(w[~normal], x[~normal])  # x − x² rounds to x
    values, sigma = (result.cpu() for result in NATIVE.superloss(given, zero, 0.5))  # 2 lambda = 1
    with mp.workdps(40):
        sigmas, minima = zip(*((mp.exp(-t), t * (t + 2) / 2) for t in truth), strict=True)
    assert worst(sigma, sigmas, x < INF, limits.eps) <= SIGMA_BAR
    assert worst(values, minima, (x > -0.3) & normal, limits.eps) <= 5  # w + 2 keeps the error of w below
    assert worst(NATIVE.confidence(given, zero, 0.5).cpu(), sigmas, x >= 0, limits.eps) <= SIGMA_BAR


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_eager(device, dtype):
    compare("native", dtype, device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_or_out_of_range(tensor, dtype):
    below = torch.nextafter(torch.tensor(-1 / math.e, dtype=dtype), torch.tensor(-1.0, dtype=dtype)).item()
    w = NATIVE.lambert_w(tensor([INF, -0.0, 0, NAN, -0.4, -INF, below], dtype))
    torch.testing.assert_close(w, tensor([INF, 0, 0, NAN, NAN, NAN, NAN], dtype), rtol=0, atol=0, equal_nan=True)
    assert w[1].signbit()
    losses, thresholds = [5, INF, INF, -INF, NAN, 1, 3, 3], [INF, INF, 2, 2, 2, NAN, 3, -INF]
    sigma = NATIVE.confidence(tensor(losses, dtype), tensor(thresholds, dtype), 1.0)
    torch.testing.assert_close(sigma, tensor([1, 1, 0, 1, NAN, NAN, 1, 0], dtype), rtol=0, atol=0, equal_nan=True)
    values, sigma = NATIVE.superloss(tensor([INF, -INF, NAN, -1000], dtype), tensor([0.0], dtype), 1.0)
    torch.testing.assert_close(values, tensor([INF, -INF, NAN, 1 - 1000 * math.e], dtype), equal_nan=True)
    torch.testing.assert_close(sigma, tensor([0, math.e, NAN, math.e], dtype), equal_nan=True)


@pytest.mark.parametrize("count", [1, 7, 300, 10_001])
def test_elements_do_not_depend_on_their_neighbours(device, count, threads):
    threads(2)
    losses, tau = (torch.linspace(*ends, count, dtype=torch.float64, device=device) for ends in ((0, 20), (1, 2)))
    whole = NATIVE.confidence(losses, tau, 1.5)
    each = [NATIVE.confidence(losses[i : i + 1], tau[i : i + 1], 1.5) for i in range(0, count, 97)]
    torch.testing.assert_close(whole[::97], torch.cat(each), rtol=1e-15, atol=0)
    assert whole.isfinite().all()
