"""The anchor log-sum-exp of a chunk in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.rows.lengths import log_one_plus_sum
from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorProblem, AnchorSums, ConfidenceSets


class EagerAnchor(AnchorBackend):
    """On every device, without a compiler."""

    def anchor_lse(self, chunk: Chunk, sums: AnchorSums, problem: AnchorProblem) -> None:
        S = chunk.S
        assert sums.lse_positive is not None and sums.lse_negative is not None
        positive, log_weight = membership(problem.sets, chunk.first, chunk.last, S)
        scaled = problem.alpha * S
        positive_exponent = problem.positive_bias - scaled + log_weight
        negative_exponent = problem.negative_bias + scaled + log_weight
        if problem.anchor_bias is not None:
            negative_exponent += problem.anchor_bias[chunk.first : chunk.last, None]
        W_positive = log_one_plus_sum(positive_exponent.masked_fill_(~positive, -torch.inf), sums.lse_positive)
        W_negative = log_one_plus_sum(negative_exponent.masked_fill_(positive, -torch.inf), sums.lse_negative)
        if sums.upstream is None:
            return
        W_positive *= sums.upstream[0].reshape(-1, 1)
        W_negative *= sums.upstream[1].reshape(-1, 1)
        if sums.dpositive_bias is not None and sums.dnegative_bias is not None:
            sums.dpositive_bias += W_positive.sum(0)
            sums.dnegative_bias += W_negative.sum(0)
        torch.sub(W_negative, W_positive, out=S).mul_(problem.alpha)


def membership(sets: LabelSets | ConfidenceSets, first: int, last: int, like: Tensor) -> tuple[Tensor, Tensor | float]:
    """Membership of X_p⁺ (c, B) bool, and the logarithm of the weights, for the classes ``first:last``."""
    if isinstance(sets, LabelSets):
        classes = torch.arange(first, last, device=like.device)
        return sets.labels == classes[:, None], 0.0
    values = sets.values(first, last, like.dtype)
    confidence = values.sigmoid() if sets.are_logits else values
    log_weight = torch.nn.functional.logsigmoid(sets.beta * (confidence - sets.threshold).abs())
    return confidence > sets.threshold, log_weight
