"""The sum and the number of the rows of each class, kept up to date while rows enter and leave."""

from typing import NamedTuple

import torch
from torch import Tensor


class ClassStatistics(NamedTuple):
    """Sum and number of rows per class, or per sample."""

    sums: Tensor  # (n, D)
    counts: Tensor  # (n,) int64


def exchange_rows(classes: ClassStatistics, touched: Tensor, entering: Tensor, leaving: Tensor) -> None:
    """Add ``entering`` (M, D) to the classes in the first half of ``touched``, subtract ``leaving`` from the second.

    ``touched`` is (2M,), −1 where a row neither enters nor leaves.
    """
    rows = spread(touched, len(classes.counts))  # for −1, 0 times a row is added
    plus, minus = (touched >= 0).long().chunk(2)
    signs = torch.cat([plus, -minus])
    add_rows(classes.counts, rows, signs)
    add_rows(classes.sums, rows, torch.cat([entering, leaving]).to(classes.sums.dtype) * signs[:, None])
    # A class that lost its last row is set to 0: the residue of rounding has a direction, but no meaning.
    left = rows[len(leaving) :]
    occupied = classes.counts[left] > 0
    classes.sums.index_copy_(0, left, torch.where(occupied[:, None], classes.sums.index_select(0, left), 0))


def spread(classes: Tensor, num_classes: int) -> Tensor:
    """Classes (M,) int64 with different classes in place of negative numbers, for rows that add nothing."""
    # ``index_put_`` adds the rows of one class one after the other.
    return torch.where(classes < 0, torch.arange(len(classes), device=classes.device) % num_classes, classes)


def add_rows(target: Tensor, index: Tensor, rows: Tensor) -> None:
    """``target[index] += rows``, repeated indices in their order on every device."""
    # On CUDA ``index_add_`` adds atomically, in random order, and ``index_put_`` sorts; on the CPU it is the reverse.
    if target.is_cuda:
        target.index_put_((index,), rows, accumulate=True)
    else:
        target.index_add_(0, index, rows)
