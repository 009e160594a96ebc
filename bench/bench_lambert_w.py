"""Confidences of a million losses, by Lambert's W, against scipy."""

import numpy as np
import pytest
import torch

from robustdml_ops.ops import confidence, otsu_threshold
from robustdml_ops.python_ref import confidence as reference

from .device import backends
from .losses import losses_of

COUNT, LAMBDA = 1_000_000, 0.5


def by_scipy(losses, threshold):
    from scipy.special import lambertw

    return np.exp(-lambertw(np.maximum(losses - threshold, 0) / (2 * LAMBDA)).real)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("contender", [*(f"robustdml/{name}" for name in backends()), "scipy"])
def test_confidence(timed, contender, dtype):
    losses = losses_of(COUNT).to(dtype)
    threshold = otsu_threshold(losses).threshold
    array, tau = losses.cpu().numpy(), threshold.cpu().numpy()
    backend = contender.split("/")[-1]
    ours = confidence(losses, threshold, LAMBDA, backend=None if contender == "scipy" else backend)
    exact = by_scipy(array, tau) if contender == "scipy" else reference(losses.double(), threshold, LAMBDA).cpu()
    np.testing.assert_allclose(ours.cpu().numpy(), exact, rtol=1e-12 if dtype == torch.float64 else 2e-6)
    timed(
        (lambda: by_scipy(array, tau))
        if contender == "scipy"
        else (lambda: confidence(losses, threshold, LAMBDA, backend=backend)),
        lambda: losses.clone(),
        group=f"confidence of {COUNT:.0e} losses, {dtype}; the floor is a copy",
        contender=contender,
        rounds=5,
    )
