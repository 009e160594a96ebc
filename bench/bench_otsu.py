"""Otsu's cut against the paper's loop and PyTorch's sort."""

import math

import numpy as np
import pytest
import torch

from robustdml_ops.ops import otsu_threshold

from .device import backends
from .losses import losses_of

SIZES = [64, 256, 1024, 8192, 65_536, 1_000_000]


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
    low = torch.arange(2, n - 1, dtype=torch.float64, device=losses.device)
    i = (sums.square() / (low * (n - low))).argmax() + 2
    return (ordered[i - 1] + ordered[i]) / 2


CONTENDERS = {
    **{
        f"robustdml/{name}": lambda losses, name=name: otsu_threshold(losses, backend=name).threshold
        for name in backends()
    },
    "torch/sort and cumsum": by_torch,
    "numpy/the paper's loop": lambda losses: by_the_paper(losses.cpu().numpy()),
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
@pytest.mark.parametrize("backend", backends())
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
