"""Lambert's W and its confidences, of the backends that launch kernels, against the eager ones."""

import torch

from robustdml_ops.ops.lambert_w.backends import BACKENDS

DTYPES = (torch.float32, torch.float64)


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
