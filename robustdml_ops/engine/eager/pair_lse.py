"""The pair log-sum-exp of a chunk of anchors in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.engine.eager.log_sum import log_one_plus_sum
from robustdml_ops.engine.eager.pair_sets import members
from robustdml_ops.engine.pairs import PairChunk, PairLSEProblem


def pair_lse(chunk: PairChunk, problem: PairLSEProblem) -> None:
    """Two log-sum-exps per row of ``chunk.S``, and S ← dL/dS."""
    S, (positive, negative) = chunk.S, members(chunk, problem.sets)
    if problem.epsilon is not None:
        lowest_positive = S.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
        highest_negative = S.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
        # Asked so that a NaN stays: it is to reach the result.
        negative &= ~(S + problem.epsilon <= lowest_positive)
        positive &= ~(S - problem.epsilon >= highest_negative)
    distance = problem.base - S
    W_positive = log_one_plus_sum((problem.alpha * distance).masked_fill_(~positive, -torch.inf), chunk.positive)
    W_negative = log_one_plus_sum(distance.mul_(-problem.beta).masked_fill_(~negative, -torch.inf), chunk.negative)
    if problem.candidate_weights is not None:
        for W, out, kept in ((W_positive, chunk.positive, positive), (W_negative, chunk.negative, negative)):
            mean = _mean_weight(kept, problem.candidate_weights)
            out.mul_(mean)
            W.mul_(mean[:, None])
    if chunk.upstream_positive is None or chunk.upstream_negative is None:
        return
    W_positive *= -problem.alpha * chunk.upstream_positive.reshape(-1, 1)
    W_negative *= problem.beta * chunk.upstream_negative.reshape(-1, 1)
    torch.add(W_positive, W_negative, out=S)


def _mean_weight(kept: Tensor, weights: Tensor) -> Tensor:
    """Mean of ``weights`` (m,) over the members of each row's set; 0 for an empty set."""
    return (kept.to(weights.dtype) @ weights) / kept.sum(1).clamp(min=1)
