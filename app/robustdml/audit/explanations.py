"""What labels that disagree with the features may mean: wrong labels of several kinds, or classes that overlap.

Which class a sample is of is told by the other samples in two ways: by normal densities (`ClassModel`), and by the
labels of its neighbours, which vote. An explanation weighs both,

    log P(k | x) = a (log density + log share of the class) + b log (votes of the neighbours + a little) + const,

and says how labels become wrong: evenly, by pairs of classes, or to what the sample resembles most. Flat
probabilities explain disagreement by overlap, sharp ones by wrong labels. Each explanation is judged by the likelihood
of the labels given, every sample left out where it counts itself. All that chance does not exclude are kept, so that a
verdict holds only where they agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from robustdml.audit.class_model import ClassModel
from robustdml.audit.features import block_of, blocks
from robustdml.audit.label_noise import LabelNoise
from robustdml.audit.scores import independent_share, no_class
from robustdml_ops.ops import nearest

EVENLY, BY_PAIRS, BY_LIKENESS = "evenly", "by pairs", "by likeness"
DENSITY_WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.4)
VOTE_WEIGHTS = (0.0, 0.3, 0.6, 1.0, 1.6, 2.6)
# Least weight of the densities where neighbours have less than 1: flatter ones explain away all of clusters far apart.
LEAST = 0.4
# Factor of the log-probabilities by which a label is drawn among the likenesses of a sample.
LIKENESS = 0.3
# With more, a sharp class and a label of its likeness say no more than a flat class.
MOST_BY_LIKENESS = 0.5
# Standard errors of the mean log-likelihood within which an explanation is kept, and what a kind with more freedom must
# gain over the even one to be taken for the classes of the next round.
KEPT, GAIN = 3.0, 3.0
MOST_KEPT = 8
# Rows that the explanations are compared on.
CHOOSING_ROWS = 2048
# Classes beside the label's: the densest, and those of most neighbours.
DENSEST, MOST_VOTED = 6, 4
NEIGHBOURS = 20
# Beyond, neighbours cost more than all else: densities alone judge.
MOST_WITH_NEIGHBOURS = 100_000
# Votes of a class without neighbours, in shares of the class.
NO_VOTE = 0.3
# Factor of the share of independent dimensions by which tails are judged: chosen on validation letters.
TAIL_SHARPNESS = 1.35
# Steps of the fit of a noise, and the rate of wrong labels that it begins with.
ROUNDS, FIRST_RATE = 10, 0.2


class Votes(NamedTuple):
    """Labels of the neighbours of each sample."""

    labels: Tensor  # int64, (N, n)
    weights: Tensor  # float32, (N, n)

    @classmethod
    def of(cls, X: Tensor, labels: Tensor) -> "Votes | None":
        """Find the neighbours by the cosine; None where there are too many samples."""
        if len(X) > MOST_WITH_NEIGHBOURS or len(X) < 2:
            return None
        found = nearest(X, X, min(NEIGHBOURS, len(X) - 1), exclude_self=True)
        distance = (2 - 2 * found.values).clamp(min=0)
        fifth = distance[:, min(4, distance.shape[1] - 1), None].clamp(min=1e-6)
        return cls(labels[found.indices], (-distance / (2 * fifth)).exp())


@dataclass(frozen=True)
class Evidence:
    """Log-densities and votes of some samples for their likely classes."""

    labels: Tensor  # int64, (n,)
    classes: Tensor  # int64, (n, K): the label, likely classes, and last C, which is no class
    density: Tensor  # log density + log share, (n, K − 1), the sample left out; −∞ where a class is there already
    votes: Tensor  # log votes, (n, K − 1)
    has_votes: bool  # whether neighbours were asked
    no_class: Tensor  # log-probability of no class, beside the likeliest class's, (n,)
    others: Tensor  # The density of all other classes together, by weight, (n, weights)
    weights: tuple[float, ...]

    def rows(self, chosen: Tensor) -> "Evidence":
        """Take some of the samples."""
        names = ("labels", "classes", "density", "votes", "no_class", "others")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    def log_probabilities(self, density: float, votes: float, num_classes: int) -> Tensor:
        """Log-probabilities of the classes, of all others together, and of none, (n, K + 1)."""
        missing = self.density == -math.inf
        logits = (density * self.density.masked_fill(missing, 0) + votes * self.votes).masked_fill(missing, -math.inf)
        others = self.others[:, self.weights.index(density)] + votes * math.log(NO_VOTE / num_classes)
        none = logits.amax(1) + self.no_class
        return torch.cat([logits, others[:, None], none[:, None]], 1).log_softmax(1)


class Explanation(NamedTuple):
    """An explanation, and what follows from it."""

    kind: str
    density: float  # Weight a
    votes: float  # Weight b
    posterior: Tensor  # (n, K), of `Evidence.classes`
    likelihood: Tensor  # Log-likelihood of each label, (n,)

    @property
    def rate(self) -> float:
        """Share of wrong labels."""
        return 1 - float(self.posterior[:, 0].mean())


def gather(
    X: Tensor, labels: Tensor, votes: Votes | None, model: ClassModel, classes: Tensor, weights: Tensor
) -> Evidence:
    """Densities and votes of all samples, each left out by as much as it counts for a class."""
    count, num_classes = len(X), len(model.counts)
    share = torch.bincount(labels, minlength=num_classes) + 0.5
    prior, log_densities = (share / share.sum()).log(), model.log_densities()
    sharpness = min(1.0, TAIL_SHARPNESS * independent_share(X, model, classes, weights))
    used = tuple(dict.fromkeys(factor * weight for weight in DENSITY_WEIGHTS for factor in (1.0, LIKENESS)))
    parts = []
    for block in blocks(count, block_of(num_classes)):
        Z, given = model.coordinates(X[block]), labels[block, None]
        all_densities = log_densities(Z).add_(prior)
        chosen = [given, all_densities.topk(min(DENSEST, num_classes), 1).indices]
        if votes is not None:
            chosen.append(votes.labels[block, :MOST_VOTED])
        near = torch.cat(chosen, 1)
        own = (near[:, :, None] == classes[block, None]).mul(weights[block, None]).sum(2)
        density, distance = model.without_own(Z, near, own)
        none = no_class(model, Z, density, distance, prior[near], sharpness)
        twice = torch.stack([(near[:, :place] == near[:, place, None]).any(1) for place in range(near.shape[1])], 1)
        voted = torch.zeros(near.shape)
        if votes is not None:
            same = near[:, :, None] == votes.labels[block, None]
            voted = same.mul(votes.weights[block, None]).sum(2)
        voted = (voted + NO_VOTE * prior[near].exp()).log()
        # No −∞, of which a weight of 0 would make NaN.
        all_densities.scatter_(1, near, torch.finfo(torch.float32).min / 4)
        others = torch.stack([(weight * all_densities).logsumexp(1) for weight in used], 1)
        peak = (density + prior[near]).masked_fill(twice, -math.inf).amax(1, keepdim=True)
        # From here on relative to the likeliest class, so that weights do not scale what all have in common.
        others -= torch.tensor(used) * peak
        parts.append((
            torch.nn.functional.pad(near, (0, 1), value=num_classes),
            (density + prior[near] - peak).masked_fill(twice, -math.inf), voted, none, others,
        ))  # fmt: skip
    found, density, voted, none, others = (torch.cat(part) for part in zip(*parts, strict=True))
    return Evidence(labels, found, density, voted, votes is not None, none, others, used)


def explain(evidence: Evidence, num_classes: int, kind: str, grid: Sequence[tuple[float, float]]) -> list[Explanation]:
    """Fit the noise of a kind under which the labels given are likeliest, for pairs of weights a and b."""
    if kind == BY_PAIRS:
        return [_explain_by_pairs(evidence, num_classes, *pair) for pair in grid]
    labels, n = evidence.labels, len(evidence.labels)
    probability = torch.stack([evidence.log_probabilities(*pair, num_classes) for pair in grid]).exp()
    likeness = None
    if kind == BY_LIKENESS:
        flat = torch.stack([evidence.log_probabilities(LIKENESS * a, LIKENESS * b, num_classes) for a, b in grid]).exp()
        likeness = flat[:, :, :1] / (1 - flat).clamp(min=1e-4)
    rate, part = torch.full((len(grid), 1, 1), FIRST_RATE), torch.full((len(grid), 1, 1), 0.5)
    popularity = torch.full((len(grid), num_classes), 1 / num_classes)
    joint = total = probability
    for _ in range(ROUNDS):
        popular = popularity[:, labels, None]
        # A wrong label of class k is any but k, by popularity; of the classes not listed each has little of it.
        of_class = torch.nn.functional.pad(popularity[:, evidence.classes[:, :-1]], (0, 2))
        even = popular / (1 - of_class).clamp(min=1e-6)
        told = rate * (even if likeness is None else (1 - part) * even + part * likeness)
        told = torch.cat([(1 - rate).expand(-1, n, 1), told[:, :, 1:-1], popular], 2)
        joint = probability * told
        total = joint.sum(2, keepdim=True).clamp(min=1e-30)
        joint = joint / total
        wrong = joint[:, :, 1:]
        # At most so many are wrong that a label is twice as likely from its own class as from another.
        rate = (wrong.sum((1, 2), keepdim=True) / max(n, 1)).clamp(max=num_classes / (num_classes + 2))
        if likeness is not None:
            alike = part * likeness[:, :, 1:]
            by_likeness = wrong * alike / ((1 - part) * even[:, :, 1:] + alike).clamp(min=1e-12)
            part = by_likeness.sum((1, 2), keepdim=True) / wrong.sum((1, 2), keepdim=True).clamp(min=1e-9)
        popularity = torch.full_like(popularity, 1e-3).index_add_(1, labels, wrong.sum(2) + 0.1)
        popularity /= popularity.sum(1, keepdim=True)
    posterior = torch.cat([joint[:, :, :-2], joint[:, :, -1:]], 2)
    found = zip(grid, posterior, total[:, :, 0].log(), rate.flatten().tolist(), strict=True)
    return [
        Explanation(kind, *pair, of_classes, likelihood)
        for pair, of_classes, likelihood, share in found
        if likeness is None or share < MOST_BY_LIKENESS
    ]


def _explain_by_pairs(evidence: Evidence, num_classes: int, density: float, votes: float) -> Explanation:
    """Each class has a rate of wrong labels, and they go to certain others."""
    labels, classes = evidence.labels, evidence.classes
    probability = evidence.log_probabilities(density, votes, num_classes).exp()
    noise = LabelNoise.unknown(num_classes, FIRST_RATE)
    before, total = torch.zeros(classes.shape), probability[:, :1]
    for _ in range(ROUNDS):
        popular = noise.popularity[labels][:, None]
        own = before.clone()
        own[:, 0] = 0
        told = noise.log_probability(labels, classes, own).exp()
        # No class has another name more often than its own.
        told[:, 1:-1] = torch.minimum(told[:, 1:-1], noise.right(classes[:, 1:-1]))
        joint = probability * torch.cat([told[:, :-1], noise.rate * popular, popular], 1)
        total = joint.sum(1, keepdim=True).clamp(min=1e-30)
        joint /= total
        before = torch.cat([joint[:, :-2], joint[:, -1:]], 1)
        rate = float(joint[:, 1:].sum() / max(len(labels), 1))
        noise = replace(LabelNoise.count(labels, classes, before, num_classes, rate), concentration=2.0)
    return Explanation(BY_PAIRS, density, votes, before, total[:, 0].log())


def explanations(evidence: Evidence, num_classes: int) -> tuple[list[Explanation], Tensor]:
    """Find the explanations that chance does not exclude, the one to go on with first; and their weights, sum 1."""
    rows = torch.linspace(0, len(evidence.labels) - 1, min(len(evidence.labels), CHOOSING_ROWS)).long()
    some = evidence.rows(rows)
    vote_weights = VOTE_WEIGHTS if evidence.has_votes else (0.0,)
    grid = [(a, b) for a, b in product(DENSITY_WEIGHTS, vote_weights) if a >= LEAST or b >= 1]
    grids = {EVENLY: grid, BY_PAIRS: grid[::3], BY_LIKENESS: grid[::2]}
    tried = {kind: explain(some, num_classes, kind, pairs) for kind, pairs in grids.items()}
    best = {kind: max(found, key=_mean) for kind, found in tried.items() if found}
    main = best[EVENLY]
    for kind in (BY_PAIRS, BY_LIKENESS):
        if kind in best and _behind(main, best[kind]) > GAIN:
            main = best[kind]
    every = [one for found in tried.values() for one in found]
    top = max(every, key=_mean)
    kept = sorted((one for one in every if _behind(one, top) <= KEPT and one is not main), key=lambda one: one.rate)
    # Of many, those from the lowest rate to the highest.
    places = torch.linspace(0, len(kept) - 1, min(len(kept), MOST_KEPT - 1)).long().tolist()
    chosen = [main, *(kept[place] for place in places)]
    weights = torch.tensor([math.exp(-0.5 * _behind(one, top) ** 2) + 1e-9 for one in chosen])
    if len(rows) < len(evidence.labels):
        chosen = [_explain_again(evidence, num_classes, one) for one in chosen]
    return chosen, weights / weights.sum()


def _explain_again(evidence: Evidence, num_classes: int, one: Explanation) -> Explanation:
    """Explain all samples as some were; one that no longer holds explains them evenly."""
    pair = [(one.density, one.votes)]
    return (explain(evidence, num_classes, one.kind, pair) or explain(evidence, num_classes, EVENLY, pair))[0]


def _mean(explanation: Explanation) -> float:
    return float(explanation.likelihood.double().mean())


def _behind(one: Explanation, other: Explanation) -> float:
    """By how many standard errors the mean log-likelihood of one is below the other's."""
    difference = (other.likelihood - one.likelihood).double()
    error = float(difference.std()) / math.sqrt(max(len(difference), 2)) if len(difference) > 1 else 0.0
    return float(difference.mean()) / max(error, 1e-9)
