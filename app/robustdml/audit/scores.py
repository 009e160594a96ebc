"""Scores of each sample: log-densities of its likeliest classes, and of none.

Classes are compared by normal densities. Whether a sample is of any class depends on Student's t with ν degrees of
freedom: the tails of a normal density are too light, and right samples far out in their class would be of none. Of n
independent dimensions with the scaled squared distance d²

    log p = peak − (ν + n)/2 log(1 + d²/ν),      which for ν → ∞ is the normal density, peak − d²/2.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robustdml.audit.class_model import ClassModel
from robustdml.audit.features import block_of, blocks

# Classes beside the given one that a sample is thought of as; all others are taken together.
CANDIDATES = 8
# Share of samples that are of no class, as far as nothing else is known.
UNNAMED = 0.002
# ν, of the tails of a class: chosen on validation letters.
FREEDOM = 8.0


@dataclass(frozen=True)
class Scores:
    """One round's scores."""

    classes: Tensor  # int64, (N, K): the label, the likeliest classes, and last C, which is no class
    logits: Tensor  # Log of prior times density of each of them, (N, K)
    rest: Tensor  # The same of all other classes together, (N,)
    nearest: Tensor  # The class that the features alone say, int64, (N,)

    def by_features(self) -> Tensor:
        """Probability of each of `classes` by the features alone."""
        return torch.cat([self.logits, self.rest[:, None]], 1).softmax(1)[:, :-1]

    def own_class(self) -> Tensor:
        """Probability that a sample is of the class of its label, by its features alone."""
        return (self.logits[:, 0] - self.logits.logsumexp(1).logaddexp(self.rest)).exp()


def score(
    X: Tensor,
    labels: Tensor,
    model: ClassModel,
    classes: Tensor,
    weights: Tensor,
    sharpness: float,
    pull: float,
    before: Scores | None,
) -> Scores:
    """Score all samples for their label, the likeliest classes and none; `sharpness` is a factor on log-densities."""
    count, kept = len(X), min(CANDIDATES, len(model.counts))
    prior, log_densities = model.log_prior(), model.log_densities() if before is None else None
    # The logits of `before` have become the weights.
    if before is None:
        chosen, nearest = (torch.empty(*size, dtype=torch.int64) for size in ((count, kept + 2), (count,)))
        out = Scores(chosen, torch.empty(count, kept + 2), torch.empty(count), nearest)
    else:
        out = replace(before, logits=torch.empty_like(before.logits))
    for block in blocks(count, block_of(len(model.counts))):
        Z = model.coordinates(X[block])
        if log_densities is not None:
            densities = log_densities(Z).mul_(sharpness).add_(prior)
            best = torch.cat([labels[block, None], densities.topk(kept, 1).indices], 1)
            out.classes[block] = torch.nn.functional.pad(best, (0, 1), value=len(model.counts))
            out.rest[block] = densities.scatter_(1, best, -math.inf).logsumexp(1)
        chosen = out.classes[block, :-1]
        own = (chosen[:, :, None] == classes[block, None]).mul(weights[block, None]).sum(2)
        density, distance = model.without_own(Z, chosen, own, pull)
        logits = (density * sharpness).add_(prior[chosen])
        unnamed = logits.amax(1) + no_class(model, Z, density, distance, prior[chosen], sharpness)
        # The label is among the likeliest ones, too: once is enough.
        logits[:, 1:].masked_fill_(chosen[:, 1:] == chosen[:, :1], -math.inf)
        out.logits[block] = torch.cat([logits, unnamed[:, None]], 1)
        out.nearest[block] = chosen.gather(1, logits.argmax(1, keepdim=True))[:, 0]
    return out


def no_class(
    model: ClassModel, Z: Tensor, density: Tensor, distance: Tensor, prior: Tensor, sharpness: float
) -> Tensor:
    """Log-probability that a row (B, D) is of no class, relative to the likeliest of some classes (B, K), by tails."""
    heavy = (_heavy_tailed(density, distance, sharpness, Z.shape[1]) + prior).amax(1)
    return _heavy_tailed(*model.unnamed(Z), sharpness, Z.shape[1]) + math.log(UNNAMED) - heavy


def _heavy_tailed(density: Tensor, distance: Tensor, sharpness: float, width: int) -> Tensor:
    """Log-density of Student's t at a squared distance, where the normal one of D dimensions is `density`."""
    peak = density + distance / 2
    return sharpness * peak - (FREEDOM + sharpness * width) / 2 * torch.log1p(sharpness / FREEDOM * distance)


# Samples by which the independent dimensions are estimated.
_SHARPNESS_ROWS = 4096


def independent_share(X: Tensor, model: ClassModel, classes: Tensor, weights: Tensor) -> float:
    """Share of the dimensions that are independent, by the distances of samples from their nearest class."""
    rows = torch.linspace(0, len(X) - 1, min(len(X), _SHARPNESS_ROWS)).long()
    log_densities = model.log_densities()
    distances = []
    for block in blocks(len(rows), block_of(len(model.counts))):
        chosen = rows[block]
        Z = model.coordinates(X[chosen])
        nearest = log_densities(Z).argmax(1, keepdim=True)
        own = (nearest == classes[chosen]).mul(weights[chosen]).sum(1, keepdim=True)
        distances.append(model.without_own(Z, nearest, own)[1][:, 0])
    # By quantiles: samples of no class are far away.
    low, high = torch.cat(distances).clamp(min=1e-12).log().quantile(torch.tensor([0.16, 0.84])).tolist()
    return float(2 / max((high - low) / 2, 1e-3) ** 2 / len(model.between))
