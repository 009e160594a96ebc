"""Losses of a batch in which a third of the labels are wrong."""

import torch
from torch import Tensor

from .device import DEVICE


def losses_of(n: int, device: str = DEVICE) -> Tensor:
    """Two lognormal modes, the upper with a third of the losses."""
    torch.manual_seed(0)
    normal, uniform = torch.randn(n, device=device), torch.rand(n, device=device)
    return torch.exp(0.4 * normal + 1.2 * (uniform < 1 / 3))
