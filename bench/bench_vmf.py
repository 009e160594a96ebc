"""log I_v of a million values against scipy, the ratio, and the fit of as many classes."""

import numpy as np
import pytest
import torch

from robustdml_ops.ops import bessel_ratio, fit_vmf, log_bessel_i, vmf_log_peak

from .device import DEVICE, backends

COUNT, DIM = 1_000_000, 128
ORDER = DIM / 2 - 1


def concentrations(dtype=torch.float64):
    """κ from 1e-4 to 1e4, shuffled: no branch predictor profits from their order."""
    torch.manual_seed(0)
    return torch.logspace(-4, 4, COUNT, dtype=torch.float64)[torch.randperm(COUNT)].to(DEVICE, dtype)


def by_scipy(kappa):
    from scipy.special import ive

    with np.errstate(divide="ignore"):
        return np.log(ive(ORDER, kappa)) + kappa


@pytest.mark.parametrize("contender", ["robustdml/log_bessel_i", "scipy/log(ive)"])
def test_log_bessel_i(timed, contender):
    kappa = concentrations()
    array = kappa.cpu().numpy()
    ours, facts = log_bessel_i(ORDER, kappa).cpu().numpy(), {}
    assert np.isfinite(ours).all()
    if contender.startswith("scipy"):
        theirs = by_scipy(array)
        finite = np.isfinite(theirs)
        np.testing.assert_allclose(ours[finite], theirs[finite], rtol=1e-13, atol=1e-12)
        facts["scipy_infinite"] = int((~finite).sum())
        assert facts["scipy_infinite"] > 0
    timed(
        (lambda: log_bessel_i(ORDER, kappa)) if contender.startswith("robustdml") else (lambda: by_scipy(array)),
        lambda: kappa.clone(),
        group=f"log I_v, {COUNT:.0e} values, D={DIM}, float64; the floor is a copy",
        contender=contender,
        rounds=5,
        **facts,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("function", [bessel_ratio, vmf_log_peak], ids=lambda f: f.__name__)
def test_elementwise(timed, function, backend, dtype):
    kappa = concentrations(dtype)
    argument = ORDER if function is bessel_ratio else DIM
    exact = function(argument, kappa.double(), backend="eager")
    torch.testing.assert_close(function(argument, kappa, backend=backend).double(), exact, rtol=1e-6, atol=0)
    timed(
        lambda: function(argument, kappa, backend=backend),
        lambda: kappa.clone(),
        group=f"{function.__name__}, {COUNT:.0e} values, D={DIM}, {dtype}; the floor is a copy",
        contender=f"robustdml/{backend}",
        rounds=5,
    )


@pytest.mark.parametrize("classes", [512, 100_000])
def test_fit(timed, classes):
    """As many classes as a step of 256 samples touches, and a whole refresh."""
    torch.manual_seed(0)
    length = torch.rand(classes, device=DEVICE) * 20
    sums = torch.nn.functional.normalize(torch.randn(classes, DIM, device=DEVICE)) * length[:, None]
    counts = torch.full((classes,), 20, device=DEVICE)
    assert fit_vmf(sums, counts).kappa.isfinite().all()
    timed(
        lambda: fit_vmf(sums, counts),
        lambda: torch.linalg.vector_norm(sums, dim=1),
        group=f"fit_vmf, C={classes}, D={DIM}; the floor is the norm of the sums",
        contender="robustdml/fit_vmf",
    )
