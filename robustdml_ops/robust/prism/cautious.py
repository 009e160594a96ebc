"""A cut that steps back where it cannot tell right labels from wrong ones. Not in the paper."""

import math

import torch
from torch import Tensor

from robustdml_ops.robust.prism.scores import FEWEST_ROWS, Scores
from robustdml_ops.robust.prism.thresholds import PerClassThreshold, Threshold

# Below this share of wrong labels a cut costs more right labels than it finds wrong ones.
LEAST_SHARE = 0.04
# Scores of other labels that a batch's median is taken of, at least.
_FEWEST_SCORES = 10


class CautiousThreshold(Threshold):
    """A cut that rejects nothing while few labels are wrong, and nothing of classes that are too small to judge.

    Any cut finds something to cut: in clean data the hard samples. How many labels are wrong is told by comparison
    with labels that surely are: those of other samples of the batch. Half of these score below their median, so if a
    share r of the labels were drawn at random, r/2 of the scores lie below it, and right labels hardly ever do. Twice
    that share, averaged over the last batches, is the estimate r; where it is below `LEAST_SHARE` all is kept. Wrong
    labels that resemble the right ones score higher than random ones: of these r counts but a part.

    A class of fewer than `FEWEST_ROWS` rows in the bank, own copies left out, has no distribution to speak of: its
    samples are kept.
    """

    shares: Tensor

    def __init__(self, cut: PerClassThreshold, batches: int) -> None:
        super().__init__()
        self.cut = cut
        # The latest one last; NaN where there has been no batch yet.
        self.register_buffer("shares", torch.full((batches,), math.nan))

    @property
    def wrong_share(self) -> Tensor:
        """The estimate, (), in [0, 1]; NaN while there is none."""
        return self.shares.nanmean().clamp(max=1)

    def forward(self, scores: Scores, labels: Tensor) -> Tensor:
        """M of each sample, (B,); −∞ for those that are not judged. The estimate and the rings advance."""
        m: Tensor = self.cut(scores, labels)
        assert scores.rows is not None
        judged = scores.known & (scores.rows >= FEWEST_ROWS)
        share = wrong_share(scores, judged).to(self.shares.dtype)
        untold = share.isnan() if scores.stands_in is None else share.isnan() | scores.stands_in
        self.shares.copy_(torch.where(untold, self.shares, torch.cat([self.shares[1:], share[None]])))
        # A NaN compares as False: nothing is rejected while there is no estimate.
        return torch.where(judged & (self.shares.nanmean() > LEAST_SHARE), m, -math.inf)


def wrong_share(scores: Scores, judged: Tensor) -> Tensor:
    """Estimate the share of wrong labels of one batch, (); NaN where the batch has too few scores to tell."""
    assert scores.of_other_labels is not None
    others = scores.of_other_labels
    below = (scores.values < others.nanmedian()) & judged
    share = 2 * below.sum() / judged.sum()
    return torch.where((~others.isnan()).sum() >= _FEWEST_SCORES, share, math.nan)
