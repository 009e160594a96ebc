"""Otsu's cut against the paper's loop and PyTorch's sort; confidences of a million losses against scipy."""

import math

import numpy as np
import pytest
import torch
from scipy.special import lambertw

from robustdml_ops.ops import confidence, otsu_threshold

SIZES = [64, 256, 1024, 8192, 65_536, 1_000_000]
COUNT, LAMBDA = 1_000_000, 0.5


def losses_of(n):
    """Two lognormal modes, the upper with a third of the losses."""
    torch.manual_seed(0)
    return torch.exp(0.4 * torch.randn(n) + 1.2 * (torch.rand(n) < 1 / 3))


def by_the_paper(losses):
    """Algorithm 1 in NumPy: two groups and their variances for every threshold."""
    ordered = np.sort(losses)
    best, threshold = math.inf, math.inf
    for i in range(2, len(ordered) - 1):
        candidate = (ordered[i - 1] + ordered[i]) / 2
        low, high = losses[losses < candidate], losses[losses >= candidate]
        if min(len(low), len(high)) < 2:
            continue
        cost = len(low) * np.var(low) + len(high) * np.var(high)
        if cost < best:
            best, threshold = cost, candidate
    return threshold


def by_torch(losses):
    """Sort and cumulative sum in float64, with the fewest calls: no groups too small, no ties, nothing not finite."""
    ordered = losses.double().sort().values
    n = len(ordered)
    sums = (ordered - ordered.mean()).cumsum(0)[1:-2]
    low = torch.arange(2, n - 1, dtype=torch.float64)
    i = (sums.square() / (low * (n - low))).argmax() + 2
    return (ordered[i - 1] + ordered[i]) / 2


CONTENDERS = {
    "robustdml/native": lambda losses: otsu_threshold(losses, backend="native").threshold,
    "robustdml/eager": lambda losses: otsu_threshold(losses, backend="eager").threshold,
    "torch/sort and cumsum": by_torch,
    "numpy/the paper's loop": lambda losses: by_the_paper(losses.numpy()),
}


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("n", SIZES)
def test_cut(timed, n, contender):
    if contender.startswith("numpy") and n > 1024:
        pytest.skip("the loop is quadratic: minutes")
    losses, step = losses_of(n), CONTENDERS[contender]
    expected = float(by_torch(losses))
    assert float(step(losses)) == pytest.approx(expected, rel=1e-6)
    timed(
        lambda: step(losses),
        lambda: losses.sort(),
        group=f"Otsu's cut of {n} losses, float32; the floor is PyTorch's sort alone",
        contender=contender,
        rounds=5 if n > 100_000 or contender.startswith("numpy") else 51,
    )


@pytest.mark.parametrize("rows", [64])
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_many_batches(timed, rows, backend):
    losses = losses_of(rows * 256).view(rows, 256)
    assert float(otsu_threshold(losses, backend=backend).threshold[3]) == pytest.approx(
        float(by_torch(losses[3])), rel=1e-6
    )
    timed(
        lambda: otsu_threshold(losses, backend=backend),
        lambda: losses.sort(),
        group=f"Otsu's cut of {rows} batches of 256, float32; the floor is PyTorch's sort alone",
        contender=f"robustdml/{backend}",
    )


def by_scipy(losses, threshold):
    return np.exp(-lambertw(np.maximum(losses - threshold, 0) / (2 * LAMBDA)).real)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("contender", ["robustdml/native", "robustdml/eager", "scipy"])
def test_confidence(timed, contender, dtype):
    losses = losses_of(COUNT).to(dtype)
    threshold = otsu_threshold(losses).threshold
    array, tau = losses.numpy(), threshold.numpy()
    backend = contender.split("/")[-1]
    ours = confidence(losses, threshold, LAMBDA, backend="native" if contender == "scipy" else backend)
    np.testing.assert_allclose(ours.numpy(), by_scipy(array, tau), rtol=1e-12 if dtype == torch.float64 else 2e-6)
    timed(
        (lambda: by_scipy(array, tau))
        if contender == "scipy"
        else (lambda: confidence(losses, threshold, LAMBDA, backend=backend)),
        lambda: losses.clone(),
        group=f"confidence of {COUNT:.0e} losses, {dtype}; the floor is a copy",
        contender=contender,
        rounds=5,
    )
