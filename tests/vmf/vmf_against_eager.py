"""Triton's von Mises–Fisher functions against the eager ones, wherever its kernels run."""

import torch

from robustdml_ops.ops.vmf.autograd import BACKENDS

FUNCTIONS = ("log_0f1", "peak", "log_i", "ratio", "ratio_derivative")
ORDERS = {torch.float64: (0.0, 0.25, 9.5, 63.0, 255.0), torch.float32: (0.0, 0.25, 9.5, 31.0, 63.0)}
CASES = [(name, dtype) for dtype in ORDERS for name in FUNCTIONS if (name, dtype) != ("log_i", torch.float32)]
EAGER, TRITON = BACKENDS["eager"], BACKENDS["triton"]


def compare(function, dtype, device):
    """Against the eager functions in float64; A′ of small orders is what two terms nearly of its 1000-fold leave."""
    kappa = torch.cat([torch.logspace(-4, 4, 301), torch.tensor([0.0, -1.0, torch.nan, torch.inf, 1e30])])
    kappa = kappa.to(dtype).to(device)
    tolerance = (1e-11 if dtype == torch.float64 else 2e-4) if function == "ratio_derivative" else None
    tolerance = tolerance or (2e-14 if dtype == torch.float64 else 4e-7)
    for v in ORDERS[dtype]:
        ours = TRITON.evaluate_vmf(function, v, kappa)
        truth = EAGER.evaluate_vmf(function, v, kappa.double())
        tiny = 1e-12 if function == "log_i" else 1e-37  # it has a zero; and what lies below float32's normal numbers
        torch.testing.assert_close(ours.double(), truth, rtol=tolerance, atol=tiny, equal_nan=True)
    assert TRITON.evaluate_vmf(function, 3.0, kappa[:0]).shape == (0,)
