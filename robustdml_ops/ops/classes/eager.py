"""The class log-sum-exp of a chunk in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.classes.problem import ClassBackend, ClassProblem, ClassSums, ClassUpstream


class EagerClasses(ClassBackend):
    """On every device, without a compiler."""

    def class_lse(self, chunk: Chunk, problem: ClassProblem, sums: ClassSums) -> None:
        logits, _ = _logits(_pooled(chunk, problem), chunk, problem)
        index, inside = _labels_in(chunk, problem)
        own = logits.gather(0, index)
        sums.target.copy_(torch.where(inside, own, sums.target)[0])
        logits.scatter_(0, index, own.masked_fill_(inside, -torch.inf))
        shift = torch.maximum(sums.shift, logits.amax(0))
        finite = shift.masked_fill(shift == -torch.inf, 0)
        total = logits.sub_(finite.to(logits.dtype)).exp_().sum(0, dtype=torch.float64)
        sums.total.mul_((sums.shift - finite).exp()).add_(total)
        sums.shift.copy_(shift)

    def class_lse_backward(self, chunk: Chunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        pooled = _pooled(chunk, problem)
        logits, scale = _logits(pooled, chunk, problem)
        dlogits = logits.sub_(upstream.lse).exp_().mul_(upstream.dlse)
        index, inside = _labels_in(chunk, problem)
        dlogits.scatter_(0, index, torch.where(inside, upstream.dlogit, dlogits.gather(0, index)))
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


def _pooled(chunk: Chunk, problem: ClassProblem) -> Tensor:
    """Similarities with whole classes, (c, B)."""
    S = _centers(chunk, problem)
    if problem.pooling == "max":
        return S.amax(1)
    if problem.pooling == "softmax":
        return (torch.softmax(S / problem.gamma, 1) * S).sum(1)
    return chunk.S


def _logits(pooled: Tensor, chunk: Chunk, problem: ClassProblem) -> tuple[Tensor, Tensor]:
    """Logits (c, B), without the bias of the label, and the scale of the classes, (c, 1) or (1, 1)."""
    given = problem.arguments(*problem.classes(chunk))
    scale, bias = given["scale"].view(-1, 1), given["bias"]
    logits = pooled * scale
    return logits if bias is None else logits.add_(bias[:, None]), scale


def _labels_in(chunk: Chunk, problem: ClassProblem) -> tuple[Tensor, Tensor]:
    """Row of every sample's label, (1, B), and whether it is in this chunk."""
    first, last = problem.classes(chunk)
    row, c = problem.labels.labels[None] - first, last - first
    return row.clamp(0, c - 1), (row >= 0) & (row < c)
