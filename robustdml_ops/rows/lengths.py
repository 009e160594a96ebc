"""1 / |row| in plain PyTorch."""

import torch
from torch import Tensor

# Norms below this are zero vectors: cosine 0 with everything and no gradient, instead of a gradient of 1e12.
TINY_NORM = 1e-12


def inverse_lengths(rows: Tensor) -> Tensor:
    """1 / |row|, (n,): 0 for zero rows, NaN for rows with NaN or inf."""
    norm = torch.linalg.vector_norm(rows, dim=1)
    # NaN must stay NaN, so ask for "below" rather than "not above"; 1 / inf would pass inf off as a zero row.
    inverse = torch.where(norm < TINY_NORM, torch.zeros_like(norm), norm.reciprocal())
    return inverse.masked_fill(norm == torch.inf, torch.nan)
