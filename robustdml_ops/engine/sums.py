"""Sums of rows that share a place, with the same bits every time."""

from torch import Tensor


def add_rows(target: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """``target[index] += rows``, differentiable in ``rows``, repeated indices in their order on every device."""
    # On CUDA ``index_add_`` adds atomically, in random order, and ``index_put_`` sorts; on the CPU it is the reverse.
    if target.is_cuda:
        return target.index_put_((index,), rows, accumulate=True)
    return target.index_add_(0, index, rows)
