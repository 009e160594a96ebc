"""The class log-sum-exp of a chunk in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.engine.similarity_chunks import Chunk, Similarities
from robustdml_ops.ops.classes import sweep
from robustdml_ops.ops.classes.sweep import ClassBackend, ClassProblem, ClassSums, ClassUpstream


class EagerClasses(ClassBackend):
    """On every device, without a compiler."""

    def class_lse(self, chunk: Chunk, problem: ClassProblem, sums: ClassSums) -> None:
        pooled = pooled_similarities(chunk, problem)
        logits, scale = class_logits(pooled, chunk, problem)
        index, inside = problem.places(*problem.classes(chunk))
        own, target = logits.gather(0, index), sums.target.view(-1, len(index))
        target.copy_(torch.where(inside, own, target.t()).t())
        if sums.weighted is not None:
            weighted = _weights(chunk, problem) * logits
            _set_labels(weighted, index, inside, torch.zeros_like(own))
            sums.weighted.add_(weighted.sum(0, dtype=torch.float64))
        leave_out(logits, pooled, problem, index, inside)
        sums.see(pooled, logits > -torch.inf)
        if chunk.dS is not None:
            chunk.dS.copy_(logits.exp().mul_(scale * sweep.term_unit(chunk.dS.dtype)))
        shift = torch.maximum(sums.shift, logits.amax(0))
        finite = shift.masked_fill(shift == -torch.inf, 0)
        total = logits.sub_(finite.to(logits.dtype)).exp_().sum(0, dtype=torch.float64)
        sums.total.mul_((sums.shift - finite).exp()).add_(total)
        sums.shift.copy_(shift)

    def complete_terms(
        self, similarities: Similarities, E: Tensor, problem: ClassProblem, upstream: ClassUpstream
    ) -> tuple[Tensor, Tensor]:
        return sweep.complete(similarities, E, problem, upstream)

    def class_lse_backward(self, chunk: Chunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        pooled = pooled_similarities(chunk, problem)
        logits, scale = class_logits(pooled, chunk, problem)
        dlogits = logits.sub_(upstream.lse).exp_().mul_(upstream.dlse)
        if problem.drop_similar_negatives is not None:
            dlogits.masked_fill_(pooled > problem.drop_similar_negatives, 0)
        if upstream.dweighted is not None:
            dlogits.addcmul_(_weights(chunk, problem), upstream.dweighted)
        index, inside = problem.places(*problem.classes(chunk))
        _set_labels(dlogits, index, inside, upstream.dlogit.view(-1, len(index)).t())
        dpooled = dlogits.mul_(scale)
        S = _centers(chunk, problem)
        if problem.pooling == "max":
            # The first of equal ones.
            place = S.argmax(1, keepdim=True)
            S.zero_().scatter_(1, place, dpooled[:, None])
        elif problem.pooling == "softmax":
            weight = torch.softmax(S / problem.gamma, 1)
            S.sub_(pooled[:, None]).div_(problem.gamma).add_(1).mul_(weight).mul_(dpooled[:, None])
        else:
            chunk.S.copy_(dpooled)


def _centers(chunk: Chunk, problem: ClassProblem) -> Tensor:
    """S as (c, H, B)."""
    return chunk.S.view(-1, problem.centers, chunk.S.shape[1])


def pooled_similarities(chunk: Chunk, problem: ClassProblem) -> Tensor:
    """Similarities with whole classes, (c, B)."""
    S = _centers(chunk, problem)
    if problem.pooling == "max":
        return S.amax(1)
    if problem.pooling == "softmax":
        return (torch.softmax(S / problem.gamma, 1) * S).sum(1)
    return chunk.S


def class_logits(pooled: Tensor, chunk: Chunk, problem: ClassProblem) -> tuple[Tensor, Tensor]:
    """Logits (c, B), without the bias of the label, and the scale of the classes, (c, 1) or (1, 1)."""
    given = problem.arguments(*problem.classes(chunk))
    scale, bias = given["scale"].view(-1, 1), given["bias"]
    logits = pooled * scale
    return logits if bias is None else logits.add_(bias[:, None]), scale


def _weights(chunk: Chunk, problem: ClassProblem) -> Tensor:
    """The weights of the logits, (c, 1)."""
    weights: Tensor = problem.arguments(*problem.classes(chunk))["logit_weights"]
    return weights[:, None]


def leave_out(logits: Tensor, pooled: Tensor, problem: ClassProblem, index: Tensor, inside: Tensor) -> None:
    """−∞ in ``logits`` (c, B) for the labels, and for negatives that are too similar."""
    if problem.drop_similar_negatives is not None:
        logits.masked_fill_(pooled > problem.drop_similar_negatives, -torch.inf)
    _set_labels(logits, index, inside, torch.full_like(index, -torch.inf, dtype=logits.dtype))


def _set_labels(logits: Tensor, index: Tensor, inside: Tensor, values: Tensor) -> None:
    """Put ``values`` (K, B) at the labels' places in ``logits`` (c, B): one label of all samples after the other."""
    for place, here, value in zip(index[:, None], inside[:, None], values[:, None], strict=True):
        logits.scatter_(0, place, torch.where(here, value, logits.gather(0, place)))
