"""Judging in rounds: what classes look like by the labels as far as they are believed, then how far to believe them.

Each round fits a `ClassModel` to the samples as far as they are thought to be of each class, scores every sample
without its own copy, and asks the labels how many of them are wrong (`LabelNoise`). The first rounds believe that
half are: where labels are mixed up within a few classes, nothing else would ever tell them apart. The last round takes
the rate that the labels themselves are the likeliest under.

Of embeddings that were learnt from the labels classes hardly overlap, and the features are believed more. The first
rounds believe that more than half of the labels are wrong where the features disagree with many. The last rounds
settle: each takes the rate, and the likeness of the classes in what they are taken for, under which the labels are the
likeliest. Classes that a sample was not thought to be of before are not looked at again in these.

Such embeddings lie nearer to the class of their label than they would by themselves, and a wrong label seems right. How
much is told by the samples that are thought to be of another class (`ClassModel.pulled`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from robustdml.audit.class_model import ClassModel
from robustdml.audit.features import block_of, blocks
from robustdml.audit.label_noise import LabelNoise, doubt_names, doubt_wrong_labels, fit_rate
from robustdml.audit.scores import Scores, View, factor_by_labels, independent_share, score

# Share of labels that the first rounds believe to be wrong where the features disagree with none, and the most of it.
FIRST_RATE, MOST_FIRST_RATE = 0.5, 0.9
# Share of all samples that are counted as not pulled towards their label beside those that tell: few tell little.
NOT_PULLED = 0.05
# Of the likeliest factor by the labels: chosen on validation letters, docs/audit.md.
SHARPNESS_BY_LABELS = 1.4


class Plan(NamedTuple):
    """Rounds, chosen on validation letters, docs/audit.md."""

    rounds: int  # All of them
    settling: int  # The last ones, which settle
    # How much the rate of the first rounds grows with the share of labels that the features disagree with.
    growth: float
    # Of the share of independent dimensions, before the rounds settle and then: classes that are mixed up are only told
    # apart by more than is right in the end.
    sharpness: float
    settled: float


# Of features as they are, whose classes may overlap by nature, and of embeddings that were learnt from the labels.
AS_THEY_ARE = Plan(8, 0, 0.0, 1.35, 1.35)
LEARNT = Plan(10, 4, 0.8, 1.7, 1.35)


@dataclass(frozen=True)
class Judgement:
    """What is held of each sample after the last round."""

    classes: Tensor  # int64, (N, K): the given label, the likeliest classes, and last C, which is no class
    # Probability of each of them, float32, (N, K); what is missing to 1 belongs to all other classes together.
    posterior: Tensor
    nearest: Tensor  # The class that the features alone say, int64, (N,)
    rate: float  # Share of wrong labels in all, as the last round was told by the labels


def judge(
    X: Tensor,
    labels: Tensor,
    num_classes: int,
    learnt: bool = False,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Judgement:
    """Judge every label."""
    plan = LEARNT if learnt else AS_THEY_ARE
    steps = len(blocks(len(X), block_of(num_classes)))
    classes, posterior = labels[:, None], torch.ones(len(X), 1)
    model, fitted = ClassModel.fit(X, classes, posterior, num_classes), (classes, posterior)
    most = 1.0 if learnt else min(1.0, SHARPNESS_BY_LABELS * factor_by_labels(X, labels, model))
    before: tuple[Tensor, Tensor] | None = None
    scores: Scores | None = None
    by_features, rate, pull = None, FIRST_RATE, 0.0
    for number in range(plan.rounds):
        last, settling = number == plan.rounds - 1, number >= plan.rounds - plan.settling
        if number:
            # The last column, no class, is not fitted.
            before, fitted = (classes, posterior), (classes[:, :-1], posterior[:, :-1])
            model = ClassModel.fit(X, *fitted, num_classes)
            pull = _pull(X, model, *fitted) if learnt else 0.0
        sharpness = (plan.settled if settling else plan.sharpness) * independent_share(X, model, *fitted)
        known, told = scores if settling else None, _of_round(report, number, steps, plan.rounds)
        scores = score(X, labels, model, *fitted, View(min(most, sharpness), pull), known, told)
        if before is None:
            rate = _first_rate(scores, num_classes, plan.growth)
            noise = LabelNoise.unknown(num_classes, rate)
        else:
            noise = LabelNoise.count(labels, classes, posterior, num_classes, rate)
        if settling or last:
            rate = fit_rate(scores.own_class(), noise.popularity[labels])
            noise = replace(noise, rate=rate)
        if settling:
            noise = replace(noise, concentration=noise.likeliest_concentration())
        if last and learnt:
            by_features = scores.by_features()
        classes, posterior = scores.classes, _posterior(labels, scores, noise, before)
    assert scores is not None
    if by_features is None:
        posterior = doubt_wrong_labels(labels, classes, posterior, num_classes)
    else:
        posterior = doubt_names(labels, classes, posterior, by_features, num_classes)
    return Judgement(classes, posterior, scores.nearest, rate)


def _first_rate(scores: Scores, num_classes: int, growth: float) -> float:
    """Share of wrong labels to begin with: a label speaks for its class at least twice as much as for any other."""
    disagree = fit_rate(scores.own_class(), torch.full((len(scores.rest),), 1 / num_classes))
    return min(FIRST_RATE + growth * disagree, MOST_FIRST_RATE, num_classes / (num_classes + 2))


def _pull(X: Tensor, model: ClassModel, classes: Tensor, weights: Tensor) -> float:
    """λ, the share of the way to the class of its label that a sample of another class is pulled."""
    along = square = wrong = 0.0
    for block in blocks(len(X)):
        parts = model.pulled(model.coordinates(X[block]), classes[block], weights[block])
        along, square = along + parts[0], square + parts[1]
        wrong += float(weights[block, 1:].sum())
    return min(max(along / max(square * (1 + NOT_PULLED * len(X) / max(wrong, 1e-6)), 1e-12), 0.0), 0.5)


def _posterior(labels: Tensor, scores: Scores, noise: LabelNoise, before: tuple[Tensor, Tensor] | None) -> Tensor:
    """Probability of each of the classes of `scores`, (N, K), written over their logits."""
    for block in blocks(len(labels)):
        given, classes = labels[block], scores.classes[block]
        own = torch.zeros(classes.shape)
        if before is not None:
            own = _own_part(classes, before[0][block], before[1][block])
        logits = scores.logits[block] + noise.log_probability(given, classes, own)
        others = scores.rest[block] + (noise.popularity[given] * max(noise.rate, 1e-6)).log()
        scores.logits[block] = torch.cat([logits, others[:, None]], 1).softmax(1)[:, :-1]
    return scores.logits


def _of_round(report: Callable[[int, int], None], number: int, steps: int, rounds: int) -> Callable[[int], None]:
    return lambda done: report(number * steps + done, rounds * steps)


def _own_part(classes: Tensor, before: Tensor, posterior: Tensor) -> Tensor:
    """What each sample has added to the counts of wrong labels of these classes, (N, K)."""
    own = torch.zeros(classes.shape)
    for place in range(1, before.shape[1]):
        own += (classes == before[:, place, None]) * posterior[:, place, None]
    own[:, 0] = 0
    return own
