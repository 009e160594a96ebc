"""Judging in rounds: what classes look like by the labels as far as they are believed, then how far to believe them.

Each round fits a `ClassModel` to the samples as far as they are thought to be of each class, scores every sample
without its own copy, and asks the labels how many of them are wrong (`LabelNoise`). The first rounds believe
that half are: where labels are mixed up within a few classes, nothing else would ever tell them apart. The last round
takes the rate that the labels themselves are the likeliest under.

A density of many dimensions is too sure of itself, because the dimensions are not independent. How many independent
ones there are is told by the squared distances d² of samples from their class: of n independent normal dimensions log
d² has the variance 2/n. So log-densities are multiplied by about n/D. No label is asked for that. Of features that were
not learnt from the labels classes may overlap by nature: where the labels given are far likelier under a smaller factor
in the first round, that one is the most that is taken.

Which class a sample is of is told by normal densities. Whether it is of any is told by Student's t with ν degrees of
freedom: the tails of a normal density are too light, and right samples far out in their class would be of none. Of n
independent dimensions with the scaled squared distance d²

    log p = peak − (ν + n)/2 log(1 + d²/ν),      which for ν → ∞ is the normal density, peak − d²/2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robustdml_ops.audit.class_model import ClassModel
from robustdml_ops.audit.features import BLOCK, blocks
from robustdml_ops.audit.label_noise import LabelNoise, fit_rate

ROUNDS = 8
# Classes beside the given one that a sample is thought of as; all others are taken together.
CANDIDATES = 8
FIRST_RATE = 0.5
# Share of samples that are of no class, as far as nothing else is known.
UNNAMED = 0.002
# ν, of the tails of a class: chosen on validation letters.
FREEDOM = 8.0
# Of n/D, and of the likeliest factor by the labels: chosen on validation letters, docs/audit.md.
SHARPNESS = 1.35
SHARPNESS_BY_LABELS = 1.4
_FACTORS = (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8, 1.0)
# Samples that the independent dimensions, and the factor by the labels, are told by.
_SHARPNESS_ROWS = 4096
# Of rows with classes at a time: 64 MB.
_MOST_SIMILARITIES = 2**24
_FACTOR_ROWS = 8_192


@dataclass(frozen=True)
class Judgement:
    """What is held of each sample after the last round.

    Attributes
    ----------
    classes : Tensor
        int64, (N, K): the given label, the likeliest classes, and last C, which is no class.
    posterior : Tensor
        Probability of each of them, float32, (N, K); what is missing to 1 belongs to all other classes together.
    nearest : Tensor
        The class that the features alone say, int64, (N,).
    rate : float
        Share of wrong labels in all, as the last round was told by the labels.
    """

    classes: Tensor
    posterior: Tensor
    nearest: Tensor
    rate: float


@dataclass(frozen=True)
class _Scores:
    """One round's scores: log of prior times density for `classes`, and for all other classes together."""

    classes: Tensor
    logits: Tensor
    rest: Tensor
    nearest: Tensor

    def own_class(self) -> Tensor:
        """Probability that a sample is of the class of its label, by its features alone, (N,)."""
        return (self.logits[:, 0] - self.logits.logsumexp(1).logaddexp(self.rest)).exp()


def judge(
    X: Tensor,
    labels: Tensor,
    num_classes: int,
    learnt: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Judgement:
    """Judge every label.

    Parameters
    ----------
    X : Tensor
        float32, (N, F), from `principal_rows`.
    labels : Tensor
        int64, (N,), in 0..C-1.
    num_classes : int
        C, at least 2.
    learnt : bool
        Whether X was learnt from these labels.
    report : callable
        Told of the blocks done and of those in all.

    Returns
    -------
    Judgement
        Of every sample.
    """
    steps = len(blocks(len(X), _block_of(num_classes)))
    classes, posterior = labels[:, None], torch.ones(len(X), 1)
    most, rate = 1.0, FIRST_RATE
    nearest = labels
    for number in range(ROUNDS):
        first = number == 0
        # The last column, no class, is not fitted.
        fitted = (classes, posterior) if first else (classes[:, :-1], posterior[:, :-1])
        model = ClassModel.fit(X, *fitted, num_classes)
        if first and not learnt:
            most = min(1.0, SHARPNESS_BY_LABELS * _factor_by_labels(X, labels, model))
        sharpness = min(most, SHARPNESS * _independent_share(X, model, *fitted))
        scores = _score(X, labels, model, *fitted, sharpness, _of_round(report, number, steps))
        if first:
            noise = LabelNoise.unknown(num_classes, rate)
        else:
            noise = LabelNoise.count(labels, classes, posterior, num_classes, rate)
        if number == ROUNDS - 1:
            rate = fit_rate(scores.own_class(), noise.popularity[labels])
            noise = replace(noise, rate=rate)
        before = None if first else (classes, posterior)
        classes, posterior, nearest = scores.classes, _posterior(labels, scores, noise, before), scores.nearest
    return Judgement(classes, _allow_for_swaps(labels, classes, posterior, num_classes), nearest, rate)


def _posterior(labels: Tensor, scores: _Scores, noise: LabelNoise, before: tuple[Tensor, Tensor] | None) -> Tensor:
    """Probability of each of the classes of `scores`, (N, K), which takes the place of their logits.

    `before` are the classes and probabilities by which the noise was counted, where it was.
    """
    for block in blocks(len(labels)):
        given, classes = labels[block], scores.classes[block]
        own = torch.zeros(classes.shape)
        if before is not None:
            own = _own_part(classes, before[0][block], before[1][block])
        logits = scores.logits[block] + noise.log_probability(given, classes, own)
        others = scores.rest[block] + (noise.popularity[given] * max(noise.rate, 1e-6)).log()
        scores.logits[block] = torch.cat([logits, others[:, None]], 1).softmax(1)[:, :-1]
    return scores.logits


def _of_round(report: Callable[[int, int], None], number: int, steps: int) -> Callable[[int], None]:
    return lambda done: report(number * steps + done, ROUNDS * steps)


def _block_of(num_classes: int) -> int:
    """Rows at a time whose similarities with all classes are not too many."""
    return max(min(BLOCK, _MOST_SIMILARITIES // num_classes), 1)


def _score(
    X: Tensor,
    labels: Tensor,
    model: ClassModel,
    classes: Tensor,
    weights: Tensor,
    sharpness: float,
    report: Callable[[int], None],
) -> _Scores:
    """Score all samples for their label, the likeliest classes and none; log-densities count `sharpness` times."""
    count, num_classes = len(X), len(model.counts)
    kept = min(CANDIDATES, num_classes)
    prior = model.log_prior()
    out = _Scores(
        torch.empty(count, kept + 2, dtype=torch.int64),
        torch.empty(count, kept + 2),
        torch.empty(count),
        torch.empty(count, dtype=torch.int64),
    )
    quadratic, linear, constant = model.predictive()
    for number, block in enumerate(blocks(count, _block_of(num_classes))):
        Z = model.coordinates(X[block])
        densities = torch.addmm(constant, Z, linear).addmm_(Z.square(), quadratic).mul_(sharpness).add_(prior)
        best = densities.topk(kept, 1)
        chosen = torch.cat([labels[block, None], best.indices], 1)
        own = (chosen[:, :, None] == classes[block, None]).mul(weights[block, None]).sum(2)
        density, distance = model.without_own(Z, chosen, own)
        logits = (density * sharpness).add_(prior[chosen])
        # Far from all classes their tails decide whether it is one of them.
        heavy = (_heavy_tailed(density, distance, sharpness, Z.shape[1]) + prior[chosen]).amax(1)
        stranger = _heavy_tailed(*model.unnamed(Z), sharpness, Z.shape[1]) + math.log(UNNAMED)
        unnamed = logits.amax(1) + stranger - heavy
        # The label is among the likeliest ones, too: once is enough.
        logits[:, 1:].masked_fill_(best.indices == labels[block, None], -math.inf)
        out.rest[block] = densities.scatter_(1, chosen, -math.inf).logsumexp(1)
        out.classes[block] = torch.nn.functional.pad(chosen, (0, 1), value=num_classes)
        out.logits[block] = torch.cat([logits, unnamed[:, None]], 1)
        out.nearest[block] = chosen.gather(1, logits.argmax(1, keepdim=True))[:, 0]
        report(number + 1)
    return out


def _heavy_tailed(density: Tensor, distance: Tensor, sharpness: float, width: int) -> Tensor:
    """Log-density of Student's t at a squared distance, where the normal one of D dimensions is `density`."""
    peak = density + distance / 2
    return sharpness * peak - (FREEDOM + sharpness * width) / 2 * torch.log1p(sharpness / FREEDOM * distance)


def _independent_share(X: Tensor, model: ClassModel, classes: Tensor, weights: Tensor) -> float:
    """Share of the dimensions that are independent, by the distances of samples from their nearest class."""
    rows = _some_rows(X, _SHARPNESS_ROWS)
    quadratic, linear, constant = model.predictive()
    distances = []
    for block in blocks(len(rows), _block_of(len(model.counts))):
        chosen = rows[block]
        Z = model.coordinates(X[chosen])
        nearest = torch.addmm(constant, Z, linear).addmm_(Z.square(), quadratic).argmax(1, keepdim=True)
        own = (nearest == classes[chosen]).mul(weights[chosen]).sum(1, keepdim=True)
        distances.append(model.without_own(Z, nearest, own)[1][:, 0])
    # By quantiles: samples of no class are far away.
    low, high = torch.cat(distances).clamp(min=1e-12).log().quantile(torch.tensor([0.16, 0.84])).tolist()
    variance = max((high - low) / 2, 1e-3) ** 2
    return float(2 / variance / len(model.between))


def _factor_by_labels(X: Tensor, labels: Tensor, model: ClassModel) -> float:
    """The factor of log-densities under which the labels given are the likeliest; each row counts for its label."""
    rows = _some_rows(X, _FACTOR_ROWS)
    quadratic, linear, constant = model.predictive()
    prior = model.log_prior()
    own_densities, others = [], []
    for block in blocks(len(rows), _block_of(len(model.counts))):
        chosen = rows[block]
        given = labels[chosen, None]
        Z = model.coordinates(X[chosen])
        own_densities.append(model.without_own(Z, given, torch.ones(given.shape))[0][:, 0])
        densities = torch.addmm(constant, Z, linear).addmm_(Z.square(), quadratic).scatter_(1, given, -math.inf)
        others.append(torch.stack([(densities * factor + prior).logsumexp(1) for factor in _FACTORS], 1))
    return _likeliest_factor(torch.cat(own_densities), torch.cat(others), prior[labels[rows]])


def _some_rows(X: Tensor, most: int) -> Tensor:
    return torch.linspace(0, len(X) - 1, min(len(X), most)).long()


def _likeliest_factor(own: Tensor, others: Tensor, prior: Tensor) -> float:
    """Of `_FACTORS` the one under which the labels given are the likeliest, with the share of wrong labels that fits.

    `own` and `prior`, (n,), are of the label given; `others`, (n, factors), of all other classes together.
    """
    best, likeliest = -math.inf, 1.0
    popular = prior.exp()
    for place, factor in enumerate(_FACTORS):
        right = torch.sigmoid(own * factor + prior - others[:, place])
        rate = fit_rate(right, popular)
        likelihood = float(((1 - rate) * right + rate * (1 - right) * popular).clamp(min=1e-30).log().double().mean())
        if likelihood > best:
            best, likeliest = likelihood, factor
    return likeliest


def _own_part(classes: Tensor, before: Tensor, posterior: Tensor) -> Tensor:
    """What each sample has added to the counts of wrong labels of these classes, (N, K)."""
    own = torch.zeros(classes.shape)
    for place in range(1, before.shape[1]):
        own += (classes == before[:, place, None]) * posterior[:, place, None]
    own[:, 0] = 0
    return own


def _allow_for_swaps(labels: Tensor, classes: Tensor, posterior: Tensor, num_classes: int) -> Tensor:
    """Allow for classes that have taken each other's place.

    Which of two groups of samples a name belongs to is told by the label that most of a group have. Of a group of
    which a samples have one label and b another, the majority is chance with the probability Φ(−(a − b) / √(a + b)):
    one half where they are as many. With that probability a sample of one is a sample of the other.
    """
    noise = LabelNoise.count(labels, classes, posterior, num_classes, 0.0)
    kept = (noise.total - noise.wrong)[:-1]
    out = posterior.clone()
    for place in range(1, classes.shape[1] - 1):
        other, given = classes[:, place], labels
        mistaken = noise.seen(other, given)
        difference = (kept[other] - mistaken) / (kept[other] + mistaken).clamp(min=1e-6).sqrt()
        chance = torch.special.ndtr(-difference) * (mistaken > 1) * (other != given)
        moved = (posterior[:, place] - posterior[:, 0]) * chance
        out[:, 0] += moved
        out[:, place] -= moved
    return out.clamp(min=0, max=1)
