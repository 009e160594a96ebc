"""What labels that disagree with the features may mean: wrong labels of several kinds, or classes that overlap.

Which class a sample is of is told by several experts, see `robustdml.audit.experts`. An explanation weighs them,

    log P(k | x) = a (log density + log share of the class) + b log (votes of the neighbours + a little)
                   + c log P(k | x; regression) + const,

and says how labels become wrong: evenly, by pairs of classes, or to what the sample resembles most. Flat
probabilities explain disagreement by overlap, sharp ones by wrong labels. Each explanation is judged by the likelihood
of the labels given, every sample left out where it counts itself. All that chance does not exclude are kept, so that a
verdict holds only where they agree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from robustdml.audit.experts import Evidence, Experts, Weights

# Samples that the mean over all classes counts for, in a class's share of wrong labels and in what it is taken for.
PRIOR_RATE = 5.0
PRIOR_PAIRS = 2.0
_TINY = 1e-12


@dataclass(frozen=True)
class LabelNoise:
    """P(label | class) of G noises, of n samples with K classes each; of class C, which has no name, all are wrong."""

    rate: Tensor  # Share of wrong labels in all, (G, 1)
    popularity: Tensor  # Where wrong labels go, (G, C), rows of sum 1
    seen: Tensor  # Expected number of samples of each sample's classes that have its label, (G, n, K)
    wrong: Tensor  # Expected number of wrong labels and of samples of each class, (G, C + 1)
    total: Tensor

    @classmethod
    def unknown(cls, num_noises: int, num_classes: int, rate: float) -> "LabelNoise":
        """The noise to start with: one rate, and every wrong label as likely as another."""
        popularity = torch.full((num_noises, num_classes), 1 / num_classes)
        none = torch.zeros(num_noises, num_classes + 1)
        return cls(torch.full((num_noises, 1), rate), popularity, torch.zeros(num_noises, 1, 1), none, none)

    @classmethod
    def count(
        cls, labels: Tensor, classes: Tensor, pairs: Tensor, posterior: Tensor, num_classes: int, rate: Tensor
    ) -> "LabelNoise":
        """Estimate the noise from posteriors (G, n, K): expected numbers of samples of each class with each label."""
        # labels (n,); classes (n, K); pairs (n, K), a number for each pair of class and label; posterior (G, n, K)
        wrong_part = posterior.clone()
        wrong_part[:, :, 0] = 0
        seen = _summed(wrong_part * (wrong_part > 1e-3), pairs, pairs.numel())[:, pairs]
        wrong, total = (_summed(part, classes, num_classes + 1) for part in (wrong_part, posterior))
        popularity = _summed(1 - posterior[:, :, 0], labels, num_classes, 1.0)
        return cls(rate, popularity / popularity.sum(1, keepdim=True), seen, wrong, total)

    def right(self, classes: Tensor) -> Tensor:
        """Share of each class's samples with its own name."""
        rates = (self.wrong + PRIOR_RATE * self.rate) / (self.total + PRIOR_RATE)
        return (1 - rates)[:, classes]

    def log_probability(self, labels: Tensor, classes: Tensor, own: Tensor) -> Tensor:
        """Log-probability of each sample's label under several classes, the sample itself left out, (G, n, K)."""
        popular, rate = self.popularity[:, labels, None], self.rate[:, :, None]
        wrong, total = (counts[:, classes] for counts in (self.wrong, self.total))
        seen = (self.seen - own).clamp(min=0)
        others = (wrong - own).clamp(min=0)
        taken_for = (seen + PRIOR_PAIRS * popular) / (others + PRIOR_PAIRS)
        rates = (others + PRIOR_RATE * rate) / ((total - own).clamp(min=0) + PRIOR_RATE)
        log_probability = (rates * taken_for).clamp(min=_TINY).log()
        right = (wrong[:, :, 0] + PRIOR_RATE * self.rate) / (total[:, :, 0] + PRIOR_RATE)
        log_probability[:, :, 0] = (1 - right).clamp(min=_TINY).log()
        log_probability[:, :, -1] = popular[:, :, 0].log()
        return log_probability


def _summed(values: Tensor, places: Tensor, number: int, start: float = 0.0) -> Tensor:
    """Sums (G, number) of values (G, …) at places (…)."""
    # One flat index: along a second dimension PyTorch adds row by row.
    offsets = torch.arange(len(values))[:, None] * number
    flat = torch.full((len(values) * number,), start)
    return flat.index_add_(0, (offsets + places.flatten()).flatten(), values.flatten()).view(-1, number)


def anchored(labels: Tensor, classes: Tensor, posterior: Tensor, num_classes: int) -> Tensor:
    """Limit weights (N, K): for a class, those of one other label count at most as much as those of its own."""
    _, pairs = torch.unique(classes * num_classes + labels[:, None], return_inverse=True)
    noise = LabelNoise.count(labels, classes, pairs, posterior[None], num_classes, torch.zeros(1, 1))
    right = (noise.total - noise.wrong)[0, classes[:, 1:-1]]
    out = posterior.clone()
    out[:, 1:-1] *= (right / noise.seen[0, :, 1:-1].clamp(min=_TINY)).clamp(max=1)
    return out


def bounded_by_size(classes: Tensor, weights: Tensor, num_classes: int) -> Tensor:
    """Limit weights (N, K): for a class, all other labels together count at most as much as its own."""
    own = _summed(weights[None, :, :1], classes[:, :1], num_classes + 1)[0, classes[:, 1:-1]]
    received = _summed(weights[None, :, 1:-1], classes[:, 1:-1], num_classes + 1)[0, classes[:, 1:-1]]
    out = weights.clone()
    out[:, 1:-1] *= (own / received.clamp(min=_TINY)).clamp(max=1)
    return out


EVENLY, BY_PAIRS, BY_LIKENESS = "evenly", "by pairs", "by likeness"
DENSITY_WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.4)
VOTE_WEIGHTS = (0.0, 0.3, 0.6, 1.0, 1.6, 2.6)
# Least weight of the densities where neighbours have less than 1: flatter ones explain away all of clusters far apart.
LEAST = 0.4
# Beside a regression fewer of both.
BESIDE = tuple(product((0.0, 0.2, 0.4, 1.0), (0.0, 0.6, 1.6), (0.6, 1.2)))
# Factor of the log-probabilities by which a label is drawn among the likenesses of a sample.
LIKENESS = 0.3
# The same where overlap is supposed, and all factors of the weights that are used.
HALF = 0.5
FLATTER = (1.0, LIKENESS, HALF, HALF * LIKENESS)
# With more, a sharp class and a label of its likeness say no more than a flat class.
MOST_BY_LIKENESS = 0.5
# Standard errors of the mean log-likelihood within which an explanation is kept, and what a kind with more freedom must
# gain over the even one to be taken for the classes of the next round.
KEPT, GAIN = 3.0, 3.0
MOST_KEPT = 8
# Rows that the explanations are compared on.
CHOOSING_ROWS = 2048
# Steps of the fit of a noise, and the rate of wrong labels that it begins with.
ROUNDS, FIRST_RATE = 10, 0.2


class Explanation(NamedTuple):
    """An explanation, and what follows from it."""

    kind: str
    weights: Weights
    posterior: Tensor  # (n, K), of `Evidence.classes`
    likelihood: Tensor  # Log-likelihood of each label, (n,)

    @property
    def rate(self) -> float:
        """Share of wrong labels."""
        return 1 - float(self.posterior[:, 0].mean())

    @property
    def mean(self) -> float:
        """Mean log-likelihood of a label."""
        return float(self.likelihood.double().mean())


def explain(evidence: Evidence, num_classes: int, kind: str, grid: Sequence[Weights]) -> list[Explanation]:
    """Fit the noise of a kind under which the labels given are likeliest, for pairs of weights a and b."""
    if kind == BY_PAIRS:
        return _explain_by_pairs(evidence, num_classes, grid)
    labels, n = evidence.labels, len(evidence.labels)
    probability = torch.stack([evidence.log_probabilities(weights, num_classes) for weights in grid]).exp()
    likeness = None
    if kind == BY_LIKENESS:
        flat = torch.stack([evidence.log_probabilities(flatter(weights), num_classes) for weights in grid]).exp()
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
        Explanation(kind, weights, of_classes, likelihood)
        for weights, of_classes, likelihood, share in found
        if likeness is None or share < MOST_BY_LIKENESS
    ]


def explain_all(evidence: Evidence, num_classes: int, one: Explanation) -> Explanation:
    """Fit the noise of an explanation to all samples; that of even noise where it explains too many as wrong."""
    found = explain(evidence, num_classes, one.kind, [one.weights])
    return (found or explain(evidence, num_classes, EVENLY, [one.weights]))[0]


def flatter(weights: Weights, factor: float = LIKENESS) -> Weights:
    """The weights of flatter probabilities, such as the likenesses that a wrong label is drawn from."""
    return Weights(*(factor * weight for weight in weights))


def _explain_by_pairs(evidence: Evidence, num_classes: int, grid: Sequence[Weights]) -> list[Explanation]:
    """Fit noise in which each class has a rate of wrong labels, and each pair of classes its share of them."""
    labels, classes = evidence.labels, evidence.classes
    # Pairs of class and label are the same in all rounds, and numbering them sorts.
    _, pairs = torch.unique(classes * num_classes + labels[:, None], return_inverse=True)
    probability = torch.stack([evidence.log_probabilities(weights, num_classes) for weights in grid]).exp()
    noise = LabelNoise.unknown(len(grid), num_classes, FIRST_RATE)
    before, total = torch.zeros(len(grid), *classes.shape), probability[:, :, :1]
    for _ in range(ROUNDS):
        popular = noise.popularity[:, labels, None]
        own = before.clone()
        own[:, :, 0] = 0
        told = noise.log_probability(labels, classes, own).exp()
        # No class has another name more often than its own.
        told[:, :, 1:-1] = torch.minimum(told[:, :, 1:-1], noise.right(classes[:, 1:-1]))
        joint = probability * torch.cat([told[:, :, :-1], noise.rate[:, :, None] * popular, popular], 2)
        total = joint.sum(2, keepdim=True).clamp(min=1e-30)
        joint /= total
        before = torch.cat([joint[:, :, :-2], joint[:, :, -1:]], 2)
        rate = joint[:, :, 1:].sum((1, 2)).div(max(len(labels), 1))[:, None]
        noise = LabelNoise.count(labels, classes, pairs, before, num_classes, rate)
    return [Explanation(BY_PAIRS, *found) for found in zip(grid, before, total[:, :, 0].log(), strict=True)]


def explanations(experts: Experts) -> tuple[Evidence, list[Explanation], Tensor]:
    """Evidence, the explanations that chance does not exclude (first that of the next round), weights of sum 1."""
    count, num_classes = len(experts.labels), experts.num_classes
    rows = torch.linspace(0, count - 1, min(count, CHOOSING_ROWS)).long()
    evidence = some = experts.evidence(rows, [factor * weight for weight in DENSITY_WEIGHTS for factor in FLATTER])
    vote_weights = (0.0,) if experts.votes is None else VOTE_WEIGHTS
    grid = [Weights(a, b) for a, b in product(DENSITY_WEIGHTS, vote_weights) if a >= LEAST or b >= 1]
    if experts.logits is not None:
        grid += [Weights(*found) for found in BESIDE if found[1] in vote_weights]
    grids = {EVENLY: grid, BY_PAIRS: grid[::3], BY_LIKENESS: grid[::2]}
    tried = {kind: explain(some, num_classes, kind, weights) for kind, weights in grids.items()}
    best = {kind: max(found, key=lambda one: one.mean) for kind, found in tried.items() if found}
    main = best[EVENLY]
    for kind in (BY_PAIRS, BY_LIKENESS):
        if kind in best and _behind(main, best[kind]) > GAIN:
            main = best[kind]
    every = [one for found in tried.values() for one in found]
    top = max(every, key=lambda one: one.mean)
    kept = sorted((one for one in every if _behind(one, top) <= KEPT and one is not main), key=lambda one: one.rate)
    # Of many, those from the lowest rate to the highest.
    places = torch.linspace(0, len(kept) - 1, min(len(kept), MOST_KEPT - 1)).long().tolist()
    chosen = [main, *(kept[place] for place in places)]
    weights = torch.tensor([math.exp(-0.5 * _behind(one, top) ** 2) + 1e-9 for one in chosen])
    if len(rows) < count:
        used = [factor * one.weights.density for one in chosen for factor in FLATTER]
        evidence = experts.evidence(torch.arange(count), used)
        chosen = [explain_all(evidence, num_classes, one) for one in chosen]
    return evidence, chosen, weights / weights.sum()


def _behind(one: Explanation, other: Explanation) -> float:
    """By how many standard errors the mean log-likelihood of one is below the other's."""
    difference = (other.likelihood - one.likelihood).double()
    error = float(difference.std()) / math.sqrt(max(len(difference), 2)) if len(difference) > 1 else 0.0
    return float(difference.mean()) / max(error, 1e-9)


# Shares of the drawn labels at which the bound is taken, and normal deviations that chance may add to it.
QUANTILES = (0.25, 0.4, 0.55, 0.7, 0.85)
CHANCE = 3.0
# Labels that are drawn for each row at least.
DRAWS = 4
# Weight of the milder probabilities: what the sharper ones call wrong they do not call right.
MILDER = 0.3
# Explanations of less weight have no say in verdicts and intervals.
LEAST_WEIGHT = 0.05


def believable(
    experts: Experts, evidence: Evidence, explained: list[Explanation], weights: Tensor, learnt: bool
) -> tuple[Tensor, Tensor]:
    """Probabilities of the candidates (N, K), and of each label being right under each explanation (E, N).

    An explanation by labels that are wrong evenly at a higher rate than `rate_bound` takes overlap for wrong labels:
    milder probabilities have their log-odds shifted until the rate is that bound. Other wrong labels look like overlap,
    and no trial tells them apart: there milder probabilities are flatter ones. Either is mixed with the explanation,
    and a label is called wrong only where both agree.
    """
    num_classes, main = experts.num_classes, explained[0]
    bound = 1.0 if learnt else rate_bound(experts, evidence, main)
    posterior, qualities = torch.zeros(main.posterior.shape), []
    for one, weight in zip(explained, weights, strict=True):
        if one.kind == EVENLY:
            milder = [capped(one.posterior, bound)]
        else:
            flat = explain(evidence, num_classes, one.kind, [flatter(one.weights, HALF)])
            milder = [other.posterior for other in flat]
        believed = (1 - MILDER) * one.posterior + MILDER * milder[0] if milder else one.posterior
        posterior += weight * believed
        if one is not main and weight < LEAST_WEIGHT:
            continue
        qualities += [one.posterior[:, 0], *(other[:, 0] for other in milder if one is main or one.kind == EVENLY)]
    return posterior, torch.stack([*qualities, posterior[:, 0]])


def rate_bound(experts: Experts, evidence: Evidence, one: Explanation) -> float:
    """The highest rate of labels that are wrong evenly, by labels that are drawn wrong on purpose.

    Labels drawn evenly among the classes that a sample is not of get scores s, log-odds of the label by the features
    alone. Of labels given at a rate r of such wrong ones at least r P(s ≤ t | drawn) have s ≤ t, so that for every t

        r ≤ P(s ≤ t | given) / P(s ≤ t | drawn).
    """
    count = len(experts.labels)
    rows = torch.linspace(0, count - 1, min(count, CHOOSING_ROWS)).long()
    scores = _log_odds(evidence.rows(rows), one.weights, experts.num_classes)
    rows = rows.repeat(DRAWS)
    random = torch.Generator().manual_seed(0)
    # The last candidate is no class: any label is wrong then.
    place = torch.multinomial(one.posterior[rows].clamp(min=1e-9), 1, generator=random)
    truth = evidence.classes[rows].gather(1, place)[:, 0]
    drawn = (truth + torch.randint(1, experts.num_classes, (len(rows),), generator=random)) % experts.num_classes
    wrong = _log_odds(experts.evidence(rows, [one.weights.density], drawn), one.weights, experts.num_classes)
    shares = torch.tensor(QUANTILES)
    below = (scores[:, None] <= wrong.quantile(shares)).float().mean(0)
    chance = CHANCE * ((below * (1 - below) + 1 / len(scores)) / len(scores)).sqrt()
    return float(((below + chance) / shares).amin())


def capped(posterior: Tensor, bound: float) -> Tensor:
    """Shift the log-odds of wrong labels until their share (`posterior` has the right ones first) is the bound."""
    right = posterior[:, :1].double().clamp(1e-12, 1 - 1e-12)
    if 1 - float(right.mean()) <= bound:
        return posterior
    low, high = 0.0, 60.0
    for _ in range(30):
        middle = (low + high) / 2
        share = float(torch.sigmoid(-torch.logit(right) - middle).mean())
        low, high = (middle, high) if share > bound else (low, middle)
    shifted = torch.sigmoid(torch.logit(right) + high).float()
    others = posterior[:, 1:] * ((1 - shifted) / (1 - posterior[:, :1]).clamp(min=1e-9))
    return torch.cat([shifted, others], 1)


def _log_odds(evidence: Evidence, weights: Weights, num_classes: int) -> Tensor:
    """Log-odds of the labels by the features alone, (n,)."""
    found = evidence.log_probabilities(weights, num_classes)
    return found[:, 0] - found[:, 1:].logsumexp(1)
