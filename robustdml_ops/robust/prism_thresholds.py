"""Where PRISM cuts: the threshold m on log P_clean, one for the batch or one per class (section III-E)."""

import math

import torch
from torch import Tensor, nn

from robustdml_ops.ops import otsu_threshold
from robustdml_ops.robust.buffers import TypedBuffers
from robustdml_ops.robust.prism_scores import Scores


class FixedThreshold(nn.Module):
    """The same m for all batches, on the scale of the scores."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M, ()."""
        return scores.values.new_full((), self.value)


class TopR(TypedBuffers):
    """TRM: the ⌊R·B⌋-th smallest score of the batch; −∞ where R·B < 1."""

    def __init__(self, noise_rate: float) -> None:
        super().__init__()
        self.noise_rate = noise_rate

    def removed(self, batch_size: int) -> int:
        """⌊R·B⌋ of the decimal R: 0.29 · 100 is 28.999999999999996."""
        return math.floor(round(self.noise_rate * batch_size, 9))

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M, ()."""
        removed = self.removed(len(labels))
        if removed == 0:
            return scores.values.new_full((), -math.inf)
        return scores.values.sort().values[removed - 1]


class SmoothTopR(TopR):
    """The sTRM: the mean of P at the quantiles of the last batches, this one among them, Eq. 15.

    A quantile that fell on a sample of a new class tells nothing: it is the 1 that such a sample is given, and would
    lift the mean above all others. It is left out, as in the authors' code.

    Parameters
    ----------
    noise_rate : float
        R.
    window : int
        τ, batches.
    logarithmic : bool
        Whether scores are logarithms; else cosines, the ablations'.
    """

    quantiles: Tensor

    def __init__(self, noise_rate: float, window: int, logarithmic: bool) -> None:
        super().__init__(noise_rate)
        self.logarithmic = logarithmic
        # The latest one last; NaN where there has been no batch yet.
        self.register_buffer("quantiles", torch.full((window,), math.nan, dtype=torch.float64))

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M, (); −∞ while there is no quantile. The batch's quantile enters the window."""
        quantile = super().forward(scores, labels).to(self.quantiles.dtype)
        told = scores.known.sum() >= self.removed(len(labels))
        self.quantiles.copy_(torch.where(told, torch.cat([self.quantiles[1:], quantile[None]]), self.quantiles))
        given = ~self.quantiles.isnan()
        number = given.sum().clamp(min=1).to(self.quantiles.dtype)
        if self.logarithmic:
            m = self.quantiles.masked_fill(~given, -math.inf).logsumexp(0) - number.log()
        else:
            removing = (given & (self.quantiles > -math.inf)).any()
            # A batch that removed none counts as the least a cosine can be, as P = 0 does among the logarithms.
            m = torch.where(removing, self.quantiles.clamp(min=-1).masked_fill(~given, 0).sum() / number, -math.inf)
        return m.to(scores.values.dtype)


class PerClassThreshold(TypedBuffers):
    """A quantile per class, of the last scores that its samples had in earlier batches. Not in the paper.

    Of n earlier scores the (n + 1)R-th smallest is taken, between two by interpolation: of n + 1 scores of one
    distribution, the latest lies below it with probability R. While (n + 1)R < 1 nothing is removed, so that a new
    class gathers scores first. Samples of a class that is not in the bank have no score.

    Parameters
    ----------
    noise_rate : float
        R.
    window : int
        Scores kept for each class; 4 bytes each, or 8.
    num_classes : int
        C.
    dtype : torch.dtype
        Of the scores.
    """

    recent: Tensor
    scored: Tensor

    def __init__(self, noise_rate: float, window: int, num_classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.noise_rate = noise_rate
        self.window = window
        self.num_classes = num_classes
        # One row per class, a ring. The row past the end takes the writes that are to have no effect: their number
        # varies, the shapes may not.
        self.register_buffer("recent", torch.full((num_classes + 1, window), math.inf, dtype=dtype))
        self.register_buffer("scored", torch.zeros(num_classes, dtype=torch.int64))

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M of each sample's class, (B,); −∞ for a class of too few scores. The batch's scores enter the rings."""
        thresholds = self._quantiles(labels)
        self._store(scores, labels)
        return thresholds.to(scores.values.dtype)

    def _quantiles(self, labels: Tensor) -> Tensor:
        if self.noise_rate == 1:
            return self.recent.new_full(labels.shape, math.inf)
        ascending = self.recent.index_select(0, labels).sort(1).values
        number = self.scored[labels].clamp(max=self.window)
        rank = ((number + 1).double() * self.noise_rate).round(decimals=9)  # from 1; of the decimal R, as in TopR
        low = rank.floor()
        share = (rank - low).to(ascending.dtype)
        last = (number - 1).clamp(min=0)
        places = torch.stack([low - 1, low], dim=1).long().clamp(min=0)
        below, above = ascending.gather(1, torch.minimum(places, last[:, None])).unbind(1)
        quantile = torch.lerp(below, above, share)
        return torch.where((low >= 1) & (number > 0), quantile, -math.inf)

    def _store(self, scores: Scores, labels: Tensor) -> None:
        """Append to the rings; of more scores of a class than it has slots the last ones stay."""
        told = scores.known & ~scores.values.isnan()
        labels, order = torch.where(told, labels, self.num_classes).sort(stable=True)
        first, end = torch.searchsorted(labels, labels), torch.searchsorted(labels, labels, right=True)
        number, rank = end - first, torch.arange(len(labels), device=labels.device) - first
        real = labels < self.num_classes
        stored = real & (rank >= number - self.window)
        classes = labels.clamp(max=self.num_classes - 1)
        slots = (self.scored[classes] + rank) % self.window
        values = torch.where(stored, scores.values[order].to(self.recent.dtype), math.inf)
        rows = torch.where(stored, labels, self.num_classes)
        self.recent.index_put_((rows, slots), values)
        is_last = real & (rank == number - 1)
        self.scored.index_add_(0, classes, torch.where(is_last, number, 0))


class OtsuCut(PerClassThreshold):
    """Otsu's cut of the batch between right and wrong labels, by how surprising they are. Not in the paper.

    What is cut is u = log(1 − log P_clean): log P_clean of wrong labels spreads over two orders of magnitude, and their
    far end would draw a cut of itself into the midst of them. No class loses more than a share R, by its own last
    scores: a cut that rejects a whole class would leave its rows in the bank to age, and reject it for ever.

    Parameters
    ----------
    noise_rate : float
        R, the most that is rejected of a class.
    window, num_classes, dtype
        As in :class:`PerClassThreshold`.
    """

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M of each sample, (B,); −∞ while AvgSim stands in. The batch's scores enter the rings from then on."""
        if scores.stands_in:
            return scores.values.new_full(labels.shape, -math.inf)
        # What is unknown stands for nothing; a NaN has no part in a cut.
        surprise = torch.log1p(-scores.values).masked_fill(~scores.known, math.nan)
        cut = -torch.expm1(otsu_threshold(surprise).threshold)
        return torch.minimum(cut, super().forward(scores, labels))
