"""Features in the form that the auditor works on: unit rows about their mean, on their principal axes."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Dimensions beyond these say little about classes, and cost a product each.
WIDEST = 256
# Rows that the axes are found by.
MOST_ROWS = 50_000
# Rows at a time: their similarities with 10⁴ classes take 160 MB.
BLOCK = 4096
# Of rows with classes at a time: 64 MB.
_MOST_SIMILARITIES = 2**24


def blocks(count: int, size: int = BLOCK) -> list[slice]:
    """Cut 0..count into pieces."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def block_of(num_classes: int) -> int:
    """Rows at a time whose similarities with all classes are not too many."""
    return max(min(BLOCK, _MOST_SIMILARITIES // num_classes), 1)


def unit_rows(features: NDArray[np.generic], rows: slice | NDArray[np.int64]) -> Tensor:
    """Read some rows, scaled to length 1; rows of zeros stay zeros."""
    block = torch.from_numpy(np.array(features[rows], dtype=np.float32))
    # By the largest component first: the squares of rows of length 1e±30 are no float32.
    block = block / block.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.nn.functional.normalize(block, dim=1)


def principal_rows(features: NDArray[np.generic]) -> Tensor:
    """Bring features into the form that classes are told apart in."""
    count, width = features.shape
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(np.int64))
    mean = torch.zeros(width, dtype=torch.float64)
    moments = torch.zeros(width, width, dtype=torch.float64)
    for block in blocks(len(chosen)):
        unit = unit_rows(features, chosen[block])
        mean += unit.sum(0)
        moments += unit.T @ unit
    mean /= len(chosen)
    axes = torch.eye(width)
    if width > WIDEST:
        covariance = moments / len(chosen) - torch.outer(mean, mean)
        axes = torch.linalg.eigh(covariance).eigenvectors[:, -WIDEST:].float()
    out = torch.empty(count, axes.shape[1])
    for block in blocks(count):
        out[block] = (unit_rows(features, block) - mean.float()) @ axes
    return out
