"""The thresholds m of PRISM on log P_clean: of a batch's scores and labels (B,), m is () or (B,); section III-E."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.shards import ClassBuffers, TypedBuffers
from robustdml_ops.ops import otsu_threshold
from robustdml_ops.robust.prism.settings import BY_OTSU

# At a lower share of wrong labels a cut rejects more right labels than wrong ones.
_LEAST_WRONG_SHARE = 0.04
_FEWEST_SCORES = 10  # for a median
FEWEST_ROWS = 5  # of a class in the bank, own copies left out, for a cautious verdict


class Scores(NamedTuple):
    """One score per sample."""

    values: Tensor  # (B,) log P_clean; 0 where not known
    known: Tensor  # (B,) bool: the sample's class has rows in the bank, or was in a batch before (ProxySim)
    vmf_pending: Tensor | None = None  # () bool: the values are AvgSim's, vMF-Sim has not begun; None: no vMF-Sim
    class_rows: Tensor | None = None  # (B,) rows of the sample's class, own copies left out; for `CautiousThreshold`
    other_labels: Tensor | None = None  # (B,) scores under labels of other samples, NaN if the same; for it, too


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
        rejected = self.rejected(labels)
        return scores.values.sort().values[rejected - 1] if rejected else scores.values.new_full((), -math.inf)

    def rejected(self, labels: Tensor) -> int:
        """⌊R·B⌋ of the decimal R: 0.29 · 100 is 28.999999999999996."""
        return math.floor(round(self.rate * len(labels), 9))


class SmoothTopR(TopR):
    """The sTRM: the mean of P at the quantiles of the last ``window`` batches, Eq. 15. ``rate`` is R."""

    # A quantile on a new class, P = 1, is not stored, as in the authors' code: it would lift the mean above all scores.

    quantiles: Tensor

    def __init__(self, rate: float, window: int) -> None:
        super().__init__(rate)
        # The latest last; NaN for batches to come.
        self.register_buffer("quantiles", torch.full((window,), math.nan, dtype=torch.float64))

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """One threshold for the batch, (); −∞ while there is no quantile. The batch's quantile is stored."""
        quantile = super().forward(scores, labels).to(self.quantiles.dtype)
        is_known = scores.known.sum() >= self.rejected(labels)
        self.quantiles.copy_(torch.where(is_known, torch.cat([self.quantiles[1:], quantile[None]]), self.quantiles))
        absent = self.quantiles.isnan()
        number = (len(absent) - absent.sum(dtype=self.quantiles.dtype)).clamp(min=1)
        m = self.quantiles.masked_fill(absent, -math.inf).logsumexp(0) - number.log()
        return m.to(scores.values.dtype)


class PerClassThreshold(ClassBuffers):
    """The R-quantile of the last scores of each class; with a ``cut`` of the batch, the smaller of both.

    m is the (n + 1)R-th smallest of n earlier scores, interpolated: if all n + 1 scores come from one distribution, the
    newest lies below m with probability R. While (n + 1)R < 1 nothing is rejected. With a cut, R is the most that is
    rejected of a class: a class rejected altogether would leave the bank and never return.

    ``rate`` is R; each class keeps its last ``window`` scores.
    """

    recent: Tensor  # (C, window) rings
    scored: Tensor  # (C,) int64: scores that each class had
    class_buffers = ("recent", "scored")

    def __init__(
        self,
        rate: float,
        window: int,
        num_classes: int,
        dtype: torch.dtype,
        cut: Callable[[Scores], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.rate, self.window = rate, window
        self.num_classes = num_classes
        self.cut = cut
        self.unseen_class = {"recent": math.inf}
        self.register_buffer("recent", torch.full((num_classes, window), math.inf, dtype=dtype))
        self.register_buffer("scored", torch.zeros(num_classes, dtype=torch.int64))

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M of each sample, (B,); −∞ for a class of too few scores. The batch's scores enter the rings."""
        quantiles = self._quantiles(labels).to(scores.values.dtype)
        valid = scores.known & ~scores.values.isnan()
        if self.cut is not None:
            quantiles = torch.minimum(self.cut(scores), quantiles)
            if scores.vmf_pending is not None:
                # AvgSim's scores have another scale than vMF-Sim's: they are neither cut nor stored.
                valid = valid & ~scores.vmf_pending
                quantiles = torch.where(scores.vmf_pending, -math.inf, quantiles)
        self._store(scores, labels, valid)
        return quantiles

    def _quantiles(self, labels: Tensor) -> Tensor:
        if self.rate == 1:
            return self.recent.new_full(labels.shape, math.inf)
        ascending = self.shards.local_at_labels(self.recent, labels).sort(1).values
        number = self.shards.local_at_labels(self.scored, labels).clamp(max=self.window)
        rank = ((number + 1).double() * self.rate).round(decimals=9)  # from 1; of the decimal R, as in TopR
        low = rank.floor()
        weight = (rank - low).to(ascending.dtype)
        last = (number - 1).clamp(min=0)
        places = torch.stack([low - 1, low], dim=1).long().clamp(min=0)
        below, above = ascending.gather(1, torch.minimum(places, last[:, None])).unbind(1)
        quantile = torch.lerp(below, above, weight)
        return self.shards.take_from_owners(torch.where((low >= 1) & (number > 0), quantile, -math.inf), labels)

    def _store(self, scores: Scores, labels: Tensor, valid: Tensor) -> None:
        """Append the scores that ``valid`` (B,) marks; if a class has more than slots, the last ones."""
        classes = len(self.scored)
        if len(labels) == 0 or classes == 0:
            return
        if self.shards.divided:
            valid, labels = valid & self.shards.owns_labels(labels), self.shards.to_local_labels(labels)
        labels, order = torch.where(valid, labels, classes).sort(stable=True)
        first, end = torch.searchsorted(labels, labels), torch.searchsorted(labels, labels, right=True)
        number, rank = end - first, torch.arange(len(labels), device=labels.device) - first
        real = labels < classes
        stored = real & (rank >= number - self.window)
        rows = labels.clamp(max=classes - 1)
        slots = (self.scored[rows] + rank) % self.window
        places, recent = rows * self.window + slots, self.recent.view(-1)
        values = torch.where(stored, scores.values[order].to(recent.dtype), recent[places])
        # The host does not know how many are stored: the others repeat a stored one, or write back the old value.
        one = stored.byte().argmax(0, keepdim=True)
        places, values = (torch.where(stored, given, given.index_select(0, one)) for given in (places, values))
        recent.index_copy_(0, places, values)
        is_last = real & (rank == number - 1)
        self.scored.index_add_(0, rows, torch.where(is_last, number, 0))


def otsu_cut(scores: Scores) -> Tensor:
    """Otsu's cut of the batch between right and wrong labels, (); −∞ where there is none.

    The cut is of the surprise u = log(1 − log P_clean): log P_clean of wrong labels spreads over two orders of
    magnitude, and a cut of log P_clean itself would separate wrong labels from each other.
    """
    surprise = torch.log1p(-scores.values).masked_fill(~scores.known, math.nan)  # NaN is left out of the cut
    return -torch.expm1(otsu_threshold(surprise).threshold)


class CautiousThreshold(TypedBuffers):
    """A cut that rejects nothing while few labels are wrong, and nothing of classes of fewer than `FEWEST_ROWS` rows.

    In clean data a cut would reject the hard samples. So the share r of wrong labels is estimated: let t be the median
    of the scores under labels of other samples, which are wrong. Half of the wrong labels score below t and hardly any
    right ones, so a fraction r/2 of the batch does. All is kept while the mean of the estimates over the last
    ``window`` is at most `_LEAST_WRONG_SHARE`.
    """

    shares: Tensor  # (window,): estimates, the latest last; NaN where there has been no batch yet

    def __init__(self, cut: PerClassThreshold, window: int) -> None:
        super().__init__()
        self.cut = cut
        self.register_buffer("shares", torch.full((window,), math.nan))

    @property
    def wrong_share(self) -> Tensor:
        """The estimated share of wrong labels, (), in [0, 1]; NaN while there is none."""
        return self.shares.nanmean().clamp(max=1)

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M of each sample, (B,); −∞ for those that are not judged. The state advances by a batch."""
        m: Tensor = self.cut(scores, labels)
        assert scores.class_rows is not None
        judged = scores.known & (scores.class_rows >= FEWEST_ROWS)
        share = wrong_share(scores, judged).to(self.shares.dtype)
        skipped = share.isnan() if scores.vmf_pending is None else share.isnan() | scores.vmf_pending
        self.shares.copy_(torch.where(skipped, self.shares, torch.cat([self.shares[1:], share[None]])))
        # A NaN compares as False: nothing is rejected while there is no estimate.
        return torch.where(judged & (self.shares.nanmean() > _LEAST_WRONG_SHARE), m, -math.inf)


def wrong_share(scores: Scores, judged: Tensor) -> Tensor:
    """Estimate the share of wrong labels of one batch, (); NaN where it has too few scores under other labels."""
    assert scores.other_labels is not None
    others = scores.other_labels
    below = (scores.values < others.nanmedian()) & judged
    share = 2 * below.sum() / judged.sum()
    return torch.where((~others.isnan()).sum() >= _FEWEST_SCORES, share, math.nan)


def make_threshold(
    name: str, rate: float, window: int, fixed: float | None, num_classes: int, memory_dtype: torch.dtype
) -> TypedBuffers:
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
