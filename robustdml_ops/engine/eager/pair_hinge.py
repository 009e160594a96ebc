"""Hinges of the pairs of a chunk of anchors in plain PyTorch."""

import torch

from robustdml_ops.engine.eager.pair_sets import members
from robustdml_ops.engine.pairs import PairChunk, PairHingeProblem


def pair_hinge(chunk: PairChunk, problem: PairHingeProblem) -> None:
    """Two sums of hinges per row of ``chunk.S``, their counts, and S ← dL/dS."""
    S, (positive, negative) = chunk.S, members(chunk, problem.sets)
    assert chunk.counts is not None
    t = (2 - 2 * S).clamp_(min=0).sqrt_().neg_() if problem.euclidean else S
    # Asked so that a NaN stays: it is to reach the result.
    positive &= ~(t >= problem.positive_margin)
    negative &= ~(t <= problem.negative_margin)
    chunk.positive.copy_((problem.positive_margin + problem.positive_offset - t).masked_fill_(~positive, 0).sum(1))
    chunk.negative.copy_((t - (problem.negative_margin - problem.negative_offset)).masked_fill_(~negative, 0).sum(1))
    torch.stack([positive.sum(1), negative.sum(1)], out=chunk.counts)
    if chunk.upstream_positive is None or chunk.upstream_negative is None:
        return
    # dt/ds: 1, or 1 / distance; equal vectors have none.
    slope = t.neg().reciprocal_().masked_fill_(t == 0, 0) if problem.euclidean else torch.ones_like(S)
    gradient = positive * -chunk.upstream_positive.reshape(-1, 1) + negative * chunk.upstream_negative.reshape(-1, 1)
    torch.mul(gradient, slope, out=S)
