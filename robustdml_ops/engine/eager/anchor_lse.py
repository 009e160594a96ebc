"""The anchor log-sum-exp of a chunk in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.engine.eager.log_sum import log_one_plus_sum
from robustdml_ops.engine.problem import AnchorChunk, AnchorProblem, LabelSets


def forward_only(X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor] | None:
    """None: without gradients, too, the sweep is what this backend has."""
    return None


def anchor_lse(chunk: AnchorChunk, problem: AnchorProblem) -> None:
    """Two log-sum-exps per row of ``chunk.S``, and S ← dL/dS."""
    S = chunk.S
    positive, log_weight = _sets(chunk, problem)
    scaled = problem.alpha * S
    positive_exponent = problem.positive_bias - scaled + log_weight
    negative_exponent = problem.negative_bias + scaled + log_weight
    if problem.anchor_bias is not None:
        negative_exponent += problem.anchor_bias[chunk.first : chunk.last, None]
    W_positive = log_one_plus_sum(positive_exponent.masked_fill_(~positive, -torch.inf), chunk.lse_positive)
    W_negative = log_one_plus_sum(negative_exponent.masked_fill_(positive, -torch.inf), chunk.lse_negative)
    if chunk.upstream_positive is None or chunk.upstream_negative is None:
        return
    W_positive *= chunk.upstream_positive.reshape(-1, 1)
    W_negative *= chunk.upstream_negative.reshape(-1, 1)
    if chunk.dpositive_bias is not None and chunk.dnegative_bias is not None:
        chunk.dpositive_bias += W_positive.sum(0)
        chunk.dnegative_bias += W_negative.sum(0)
    torch.sub(W_negative, W_positive, out=S).mul_(problem.alpha)


def _sets(chunk: AnchorChunk, problem: AnchorProblem) -> tuple[Tensor, Tensor | float]:
    """Membership of X_p⁺ (c, B) and the logarithm of the weights."""
    sets = problem.sets
    if isinstance(sets, LabelSets):
        classes = torch.arange(chunk.first, chunk.last, device=chunk.S.device)
        return sets.labels == classes[:, None], 0.0
    values = sets.values(chunk.first, chunk.last, chunk.S.dtype)
    confidence = values.sigmoid() if sets.are_logits else values
    log_weight = torch.nn.functional.logsigmoid(sets.beta * (confidence - sets.threshold).abs())
    return confidence > sets.threshold, log_weight
