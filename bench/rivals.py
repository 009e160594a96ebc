"""The losses as one writes them in PyTorch: what a row's rivals compute, as they are and by ``torch.compile``.

Matrices of classes are (C, D). Each formula stands here once, for ``bench``, ``bench.host`` and ``bench.gpu``.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def cosines(X: Tensor, P: Tensor) -> Tensor:
    return F.linear(F.normalize(X), F.normalize(P))


def proxy_anchor(X: Tensor, P: Tensor, y: Tensor, alpha: float = 32.0, margin: float = 0.1) -> Tensor:
    S, own = cosines(P, X), torch.arange(len(P), device=y.device)[:, None] == y
    attraction = torch.where(own, torch.exp(-alpha * (S - margin)), 0).sum(1).log1p()
    repulsion = torch.where(own, 0, torch.exp(alpha * (S + margin))).sum(1).log1p()
    return attraction.sum() / own.any(1).sum() + repulsion.mean()


def normalized_softmax(X: Tensor, P: Tensor, y: Tensor, scale: float = 20.0) -> Tensor:
    return F.cross_entropy(scale * cosines(X, P), y)


def linear_cross_entropy(X: Tensor, P: Tensor, y: Tensor, scale: float = 20.0) -> Tensor:
    """The same by PyTorch's fused function, from 2.13 on; one chunk is the fastest of its settings on a CPU."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=len(X))
    return F.linear_cross_entropy(scale * F.normalize(X), F.normalize(P), y, options=options)


def proxy_nca(X: Tensor, P: Tensor, y: Tensor) -> Tensor:
    """Of squared distances of unit vectors, 2 − 2 cos: the constant leaves with the difference of the logits."""
    return normalized_softmax(X, P, y, scale=2.0)


def with_margin(S: Tensor, y: Tensor, moved: Callable[[Tensor], Tensor], scale: float = 64.0) -> Tensor:
    """Cross-entropy of cosines (B, C) of which ``moved`` changes those of the labels, (B, 1)."""
    own = torch.arange(S.shape[1], device=y.device) == y[:, None]
    return F.cross_entropy(scale * torch.where(own, moved(S.gather(1, y[:, None])), S), y)


def cosface(X: Tensor, P: Tensor, y: Tensor, margin: float = 0.35) -> Tensor:
    return with_margin(cosines(X, P), y, lambda own: own - margin)


def angular(own: Tensor, margin: float = math.radians(28.6)) -> Tensor:
    """cos(θ + m), and behind π − m a line that goes on falling."""
    moved = own * math.cos(margin) - (1 - own * own).clamp(min=1e-12).sqrt() * math.sin(margin)
    return torch.where(own >= -math.cos(margin), moved, own - margin * math.sin(margin))


def arcface(X: Tensor, P: Tensor, y: Tensor) -> Tensor:
    return with_margin(cosines(X, P), y, angular)


def subcenter_arcface(X: Tensor, P: Tensor, y: Tensor, centers: int = 3) -> Tensor:
    return with_margin(cosines(X, P).view(len(X), -1, centers).amax(2), y, angular)


def soft_triple(X: Tensor, P: Tensor, y: Tensor, centers: int = 10) -> Tensor:
    S = cosines(X, P).view(len(X), -1, centers)
    return with_margin((S * (10 * S).softmax(2)).sum(2), y, lambda own: own - 0.01, scale=20)


def sets(y: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs of a batch with itself, or with candidates of the labels ``of``."""
    same = y[:, None] == (y if of is None else of)
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    return (same & ~itself if of is None else same), ~same


def multi_similarity(X: Tensor, y: Tensor) -> Tensor:
    return multi_similarity_of(cosines(X, X), *sets(y))


def mined_multi_similarity(X: Tensor, y: Tensor, epsilon: float = 0.1) -> Tensor:
    """Of the pairs that are nearly as hard as the hardest of the other sign."""
    S, (positive, negative) = cosines(X, X), sets(y)
    lowest = S.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    highest = S.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    return multi_similarity_of(S, positive & (S - epsilon < highest), negative & (S + epsilon > lowest))


def multi_similarity_of(S: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    attraction = torch.where(positive, torch.exp(-2 * (S - 0.5)), 0).sum(1).log1p() / 2
    repulsion = torch.where(negative, torch.exp(50 * (S - 0.5)), 0).sum(1).log1p() / 50
    return (attraction + repulsion).mean()


def listed_multi_similarity(X: Tensor, *listed: Tensor) -> Tensor:
    """Of a miner's pairs: anchors, positives, anchors, negatives."""
    S = cosines(X, X)
    none = torch.zeros_like(S, dtype=torch.bool)
    yes = torch.ones((), dtype=torch.bool, device=S.device)
    return multi_similarity_of(S, none.index_put(listed[:2], yes), none.index_put(listed[2:], yes))


def hinges(attraction: Tensor, repulsion: Tensor) -> Tensor:
    """Means over the pairs whose hinge is above 0."""
    return sum(each.relu().sum() / (each > 0).sum().clamp(min=1) for each in (attraction, repulsion))


def euclidean_contrastive(X: Tensor, y: Tensor) -> Tensor:
    """Distances of unit vectors, margins 0 and 1."""
    distances, (positive, negative) = (2 - 2 * cosines(X, X)).clamp(min=1e-12).sqrt(), sets(y)
    return hinges(torch.where(positive, distances, 0), torch.where(negative, 1 - distances, 0))


def contrastive(X: Tensor, y: Tensor) -> Tensor:
    """Cosines, margins 1 and 0.5."""
    S, (positive, negative) = cosines(X, X), sets(y)
    return hinges(torch.where(positive, 1 - S, 0), torch.where(negative, S - 0.5, 0))


def memory_contrastive(X: Tensor, y: Tensor, bank: Tensor, bank_labels: Tensor, margin: float = 0.5) -> Tensor:
    """Of the batch, and of the batch with a memory, in the mean over the samples."""

    def total(S: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return torch.where(negative, (S - margin).relu(), 0).sum() - torch.where(positive, S, 0).sum()

    return (total(cosines(X, X), *sets(y)) + total(cosines(X, bank), *sets(y, bank_labels))) / len(X)


def supcon(X: Tensor, y: Tensor, temperature: float = 0.1) -> Tensor:
    Z, (positive, negative) = cosines(X, X) / temperature, sets(y)
    lse = Z.masked_fill(~(positive | negative), -torch.inf).logsumexp(1)
    number = positive.sum(1)
    losses = torch.where(number > 0, lse - torch.where(positive, Z, 0).sum(1) / number.clamp(min=1), 0)
    return losses.sum() / (losses > 0).sum().clamp(min=1)


def nt_xent(X: Tensor, y: Tensor, temperature: float = 0.07) -> Tensor:
    Z, (positive, negative) = cosines(X, X) / temperature, sets(y)
    lse = Z.masked_fill(~negative, -torch.inf).logsumexp(1, keepdim=True)
    return torch.where(positive, F.softplus(lse - Z), 0).sum() / positive.sum().clamp(min=1)


def siglip(X: Tensor, other: Tensor, temperature: float = 0.1, bias: float = -10.0) -> Tensor:
    """Of two towers, with a temperature and a bias that are not learnt."""
    signs = 2 * torch.eye(len(X), dtype=X.dtype, device=X.device) - 1
    return -F.logsigmoid(signs * (cosines(X, other) / temperature + bias)).sum() / len(X)


def info_nce(X: Tensor, other: Tensor, temperature: float = 0.07) -> Tensor:
    """Of two towers, from both sides."""
    Z, y = cosines(X, other) / temperature, torch.arange(len(X), device=X.device)
    return (F.cross_entropy(Z, y) + F.cross_entropy(Z.t(), y)) / 2


@cache
def compiled(formula: Callable[..., Any], backend: str = "inductor", mode: str | None = None) -> Callable[..., Any]:
    """The formula by ``torch.compile``, of fixed shapes: the first call of each shape takes seconds."""
    return torch.compile(formula, dynamic=False, backend=backend, mode=mode)
