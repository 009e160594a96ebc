"""Log-sum-exps beside a 1, in plain PyTorch."""

import torch
from torch import Tensor


def log_one_plus_sum(exponent: Tensor, lse: Tensor) -> Tensor:
    """Lse ← log(1 + Σ exp(exponent)) by rows; returns the weights exp(exponent) / (1 + Σ), in the place of exponent."""
    shift = exponent.amax(1, keepdim=True).clamp_(min=0)
    weight = exponent.sub_(shift).exp_()
    total = weight.sum(1, keepdim=True)
    one = shift.neg().exp_()
    # log1p where nothing was shifted: a sum far below 1 must not be rounded away.
    value = torch.where(shift == 0, total.log1p(), shift + (one + total).log())
    lse.copy_(value[:, 0])
    return weight.div_(one + total)
