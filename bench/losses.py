"""Losses of a batch in which a third of the labels are wrong."""

import torch
from torch import Tensor


def losses_of(n: int) -> Tensor:
    """Two lognormal modes, the upper with a third of the losses."""
    torch.manual_seed(0)
    return torch.exp(0.4 * torch.randn(n) + 1.2 * (torch.rand(n) < 1 / 3))
