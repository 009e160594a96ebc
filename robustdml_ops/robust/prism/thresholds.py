"""Where PRISM cuts: the threshold m on log P_clean, one for the batch or one per class (section III-E)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess
from robustdml_ops.ops import otsu_threshold
from robustdml_ops.robust.buffers import TypedBuffers
from robustdml_ops.robust.prism.scores import Scores


class Threshold(TypedBuffers):
    """Called with a batch's scores and labels, gives m: (), or (B,), one for each sample. State advances by a batch."""

    def judge(self, scores: Scores, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Which samples are kept, (B,) bool, and m. A sample of a new class is kept whatever m is."""
        m: Tensor = self(scores, labels)
        return (scores.values > m) | ~scores.known, m


class FixedThreshold(Threshold):
    """The same m for all batches, on the scale of the scores."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """One threshold for the batch, a tensor of shape ()."""
        return scores.values.new_full((), self.value)


class TopR(Threshold):
    """TRM: the ⌊R·B⌋-th smallest score of the batch; −∞ where R·B < 1. ``share`` is R."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """One threshold for the batch, a tensor of shape ()."""
        return _smallest(scores.values, _rejected_number(self.share, len(labels)))


class SmoothTopR(Threshold):
    """The sTRM: the mean of P at the quantiles of the last batches, this one among them, Eq. 15.

    A sample of a new class is given P = 1. Where so many are new that the quantile falls on one of them, it says
    nothing about the batch, and would lift the mean above all others: it is left out, as in the authors' code.

    ``share`` is R, ``batches`` is τ, how many count. Scores are log P if ``logarithmic``, else an ablation's cosines.
    """

    quantiles: Tensor

    def __init__(self, share: float, batches: int, logarithmic: bool) -> None:
        super().__init__()
        self.share = share
        self.logarithmic = logarithmic
        # The latest one last; NaN where there has been no batch yet.
        self.register_buffer("quantiles", torch.full((batches,), math.nan, dtype=torch.float64))

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """One threshold for the batch, (); −∞ while there is no quantile. The batch's quantile is stored."""
        rejected = _rejected_number(self.share, len(labels))
        quantile = _smallest(scores.values, rejected).to(self.quantiles.dtype)
        told = scores.known.sum() >= rejected
        self.quantiles.copy_(torch.where(told, torch.cat([self.quantiles[1:], quantile[None]]), self.quantiles))
        absent = self.quantiles.isnan()
        number = (len(absent) - absent.sum(dtype=self.quantiles.dtype)).clamp(min=1)
        if self.logarithmic:
            m = self.quantiles.masked_fill(absent, -math.inf).logsumexp(0) - number.log()
        else:
            rejecting = (self.quantiles > -math.inf).any()
            # A batch that rejected none counts as the least a cosine can be, as P = 0 does among the logarithms.
            m = torch.where(rejecting, self.quantiles.clamp(min=-1).masked_fill(absent, 0).sum() / number, -math.inf)
        return m.to(scores.values.dtype)


class PerClassThreshold(Threshold):
    """A quantile per class, of the last scores that its samples had in earlier batches. Not in the paper.

    Of n earlier scores the (n + 1)R-th smallest is taken, interpolated between two neighbours. If all n + 1 scores
    come from one distribution, the newest lies below it with probability R. While (n + 1)R < 1 nothing is rejected:
    a new class gathers scores first. Samples that are not known have no score.

    ``share`` is R, ``scores_kept`` how many scores of ``dtype`` are kept for each class. A ``cut``, if there is one,
    gives m of the whole batch, and R is then the most that is rejected of a class: a cut that rejected all of a class
    would leave its rows in the bank to age, and reject the class for ever.
    """

    recent: Tensor
    scored: Tensor
    shards: OneProcess = ONE_PROCESS

    def __init__(
        self,
        share: float,
        scores_kept: int,
        num_classes: int,
        dtype: torch.dtype,
        cut: Callable[[Scores], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.share = share
        self.scores_kept = scores_kept
        self.num_classes = num_classes
        self.cut = cut
        self.register_buffer("recent", torch.full((num_classes, scores_kept), math.inf, dtype=dtype))  # rings
        self.register_buffer("scored", torch.zeros(num_classes, dtype=torch.int64))

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M of each sample, (B,); −∞ for a class of too few scores. The batch's scores enter the rings."""
        quantiles = self._quantiles(labels).to(scores.values.dtype)
        told = scores.known & ~scores.values.isnan()
        if self.cut is None or scores.stands_in is None:
            self._store(scores, labels, told)
            return quantiles if self.cut is None else torch.minimum(self.cut(scores), quantiles)
        # The cut and the rings are for vMF-Sim's scores alone, whose scale is another.
        self._store(scores, labels, told & ~scores.stands_in)
        return torch.where(scores.stands_in, -math.inf, torch.minimum(self.cut(scores), quantiles))

    def _quantiles(self, labels: Tensor) -> Tensor:
        if self.share == 1:
            return self.recent.new_full(labels.shape, math.inf)
        ascending = self.shards.at_labels(self.recent, labels).sort(1).values
        number = self.shards.at_labels(self.scored, labels).clamp(max=self.scores_kept)
        rank = ((number + 1).double() * self.share).round(decimals=9)  # from 1; of the decimal R, as in TopR
        low = rank.floor()
        weight = (rank - low).to(ascending.dtype)
        last = (number - 1).clamp(min=0)
        places = torch.stack([low - 1, low], dim=1).long().clamp(min=0)
        below, above = ascending.gather(1, torch.minimum(places, last[:, None])).unbind(1)
        quantile = torch.lerp(below, above, weight)
        return self.shards.from_owners(torch.where((low >= 1) & (number > 0), quantile, -math.inf), labels)

    def _store(self, scores: Scores, labels: Tensor, told: Tensor) -> None:
        """Append those that ``told`` (B,) marks; of more scores of a class than it has slots the last ones stay."""
        classes = len(self.scored)
        if len(labels) == 0 or classes == 0:
            return
        if self.shards.divided:
            told, labels = told & self.shards.here(labels), self.shards.labels(labels)
        labels, order = torch.where(told, labels, classes).sort(stable=True)
        first, end = torch.searchsorted(labels, labels), torch.searchsorted(labels, labels, right=True)
        number, rank = end - first, torch.arange(len(labels), device=labels.device) - first
        real = labels < classes
        stored = real & (rank >= number - self.scores_kept)
        rows = labels.clamp(max=classes - 1)
        slots = (self.scored[rows] + rank) % self.scores_kept
        places, recent = rows * self.scores_kept + slots, self.recent.view(-1)
        values = torch.where(stored, scores.values[order].to(recent.dtype), recent[places])
        # How many are stored varies, the shapes may not: the others repeat one that is, or what is there already.
        one = stored.byte().argmax(0, keepdim=True)
        places, values = (torch.where(stored, given, given.index_select(0, one)) for given in (places, values))
        recent.index_copy_(0, places, values)
        is_last = real & (rank == number - 1)
        self.scored.index_add_(0, rows, torch.where(is_last, number, 0))

    def class_dimensions(self) -> dict[str, int]:
        """What has something for each class, and which dimension counts them."""
        return {"recent": 0, "scored": 0}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Rings that were saved with a row past the end come without it."""
        saved = state_dict.get(prefix + "recent")
        if saved is not None and len(saved) == len(self.recent) + 1:
            state_dict = {**state_dict, prefix + "recent": saved[:-1]}
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def otsu_cut(scores: Scores) -> Tensor:
    """Otsu's cut of the batch between right and wrong labels, (); −∞ where there is none. Not in the paper.

    What is cut is the surprise u = log(1 − log P_clean): log P_clean of wrong labels spreads over two orders of
    magnitude, and a cut of log P_clean itself would part the wrong labels from each other.
    """
    # An unknown sample's score stands for nothing; a NaN has no part in a cut.
    surprise = torch.log1p(-scores.values).masked_fill(~scores.known, math.nan)
    return -torch.expm1(otsu_threshold(surprise).threshold)


def _rejected_number(share: float, batch_size: int) -> int:
    """⌊R·B⌋ of the decimal R: 0.29 · 100 is 28.999999999999996."""
    return math.floor(round(share * batch_size, 9))


def _smallest(values: Tensor, rank: int) -> Tensor:
    """The ``rank``-th smallest of them, (); −∞ for rank 0."""
    return values.sort().values[rank - 1] if rank else values.new_full((), -math.inf)
