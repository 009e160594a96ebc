"""Triton's kernels of the von Mises–Fisher distribution against the eager functions."""

import pytest
import torch

from robustdml_ops.ops.vmf.autograd import BACKENDS
from tests.triton_here import DEVICE, MARKS
from tests.vmf import fit_against_eager

# NumPy tells of overflows in lanes that are masked afterwards.
pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
FUNCTIONS = ("ratio_derivative", "ratio", "log_0f1", "peak", "log_i")
ORDERS = {torch.float64: (0.0, 0.25, 9.5, 63.0, 255.0), torch.float32: (0.0, 0.25, 9.5, 31.0, 63.0)}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_against_eager(function):
    """In float64, to which A′ of small orders is the difference of two terms nearly 1000 times as large."""
    for dtype, orders in ORDERS.items():
        if (function, dtype) == ("log_i", torch.float32):
            continue  # computed in float64 alone
        kappa = torch.cat([torch.logspace(-4, 4, 301), torch.tensor([0.0, -1.0, torch.nan, torch.inf, 1e30])])
        kappa = kappa.to(dtype).to(DEVICE)
        tolerance = (1e-11 if dtype == torch.float64 else 2e-4) if function == "ratio_derivative" else None
        tolerance = tolerance or (2e-14 if dtype == torch.float64 else 4e-7)
        tiny = 1e-12 if function == "log_i" else 1e-37  # its zero; numbers below float32's normal ones
        for v in orders:
            ours = BACKENDS["triton"].evaluate_vmf(function, v, kappa)
            truth = BACKENDS["eager"].evaluate_vmf(function, v, kappa.double())
            torch.testing.assert_close(ours.double(), truth, rtol=tolerance, atol=tiny, equal_nan=True)
        assert BACKENDS["triton"].evaluate_vmf(function, 3.0, kappa[:0]).shape == (0,)


def test_the_fit_against_eager():
    on_cpu = DEVICE.type == "cpu"
    assert fit_against_eager.compare("triton", DEVICE, quick=on_cpu) == (8 if on_cpu else 102)
