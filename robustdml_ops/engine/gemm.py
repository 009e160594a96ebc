"""Matrix products that accumulate and answer in float32 (float64 for float64) whatever their operands are."""

import torch
from torch import Tensor


def product(A: Tensor, B: Tensor, out: Tensor) -> Tensor:
    """Out ← A @ B, where ``out`` has the accumulation type."""
    if A.dtype == out.dtype:
        return torch.mm(A, B, out=out)
    return torch.mm(A, B, out_dtype=out.dtype, out=out)


def accumulate(total: Tensor, A: Tensor, B: Tensor) -> None:
    """Total ← total + A @ B, where ``total`` has the accumulation type."""
    if A.dtype == total.dtype:
        total.addmm_(A, B)
    else:
        total += torch.mm(A, B, out_dtype=total.dtype)
