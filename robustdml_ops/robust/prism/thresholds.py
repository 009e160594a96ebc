"""The threshold m of PRISM on log P_clean, one for all classes (section III-E); `class_thresholds` has one per class.

A threshold is called with the scores (B,) and labels (B,) of a batch and returns m, () or (B,); its state advances by
a batch.
"""

import math

import torch
from torch import Tensor

from robustdml_ops.engine.typed_buffers import TypedBuffers
from robustdml_ops.robust.prism.class_thresholds import CautiousThreshold, PerClassThreshold, otsu_cut
from robustdml_ops.robust.prism.scores import Scores
from robustdml_ops.robust.prism.settings import BY_OTSU


class FixedThreshold(TypedBuffers):
    """The same m for all batches."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """One threshold for the batch, ()."""
        return scores.values.new_full((), self.value)


class TopR(TypedBuffers):
    """TRM: the ⌊R·B⌋-th smallest score of the batch; −∞ where R·B < 1. ``rate`` is R."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """One threshold for the batch, ()."""
        return _smallest(scores.values, _rejected_number(self.rate, len(labels)))


class SmoothTopR(TypedBuffers):
    """The sTRM: the mean of P at the quantiles of the last ``batches`` batches, Eq. 15. ``rate`` is R.

    A quantile that falls on a sample of a new class, P = 1, is not stored, as in the authors' code: it would lift the
    mean above all other scores.
    """

    quantiles: Tensor

    def __init__(self, rate: float, batches: int) -> None:
        super().__init__()
        self.rate = rate
        # The latest last; NaN for batches to come.
        self.register_buffer("quantiles", torch.full((batches,), math.nan, dtype=torch.float64))

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """One threshold for the batch, (); −∞ while there is no quantile. The batch's quantile is stored."""
        rejected = _rejected_number(self.rate, len(labels))
        quantile = _smallest(scores.values, rejected).to(self.quantiles.dtype)
        is_known = scores.known.sum() >= rejected
        self.quantiles.copy_(torch.where(is_known, torch.cat([self.quantiles[1:], quantile[None]]), self.quantiles))
        absent = self.quantiles.isnan()
        number = (len(absent) - absent.sum(dtype=self.quantiles.dtype)).clamp(min=1)
        m = self.quantiles.masked_fill(absent, -math.inf).logsumexp(0) - number.log()
        return m.to(scores.values.dtype)


AnyThreshold = FixedThreshold | TopR | SmoothTopR | PerClassThreshold | CautiousThreshold


def make_threshold(
    name: str, rate: float, window: int, fixed: float | None, num_classes: int, memory_dtype: torch.dtype
) -> AnyThreshold:
    """The threshold of this name; ``fixed`` is the P_clean of "fixed"."""
    if fixed is not None:
        return FixedThreshold(math.log(fixed) if fixed > 0 else -math.inf)
    if name == "top-r":
        return TopR(rate)
    if name == "smooth-top-r":
        return SmoothTopR(rate, window)
    dtype = torch.promote_types(memory_dtype, torch.float32)
    threshold = PerClassThreshold(rate, window, num_classes, dtype, otsu_cut if name in BY_OTSU else None)
    return CautiousThreshold(threshold, window) if name == "cautious" else threshold


def _rejected_number(rate: float, batch_size: int) -> int:
    """⌊R·B⌋ of the decimal R: 0.29 · 100 is 28.999999999999996."""
    return math.floor(round(rate * batch_size, 9))


def _smallest(values: Tensor, rank: int) -> Tensor:
    """The ``rank``-th smallest of them, (); −∞ for rank 0."""
    return values.sort().values[rank - 1] if rank else values.new_full((), -math.inf)
