"""Judging labels in rounds: fit the classes, score every sample without itself, estimate the noise.

Each round fits a `ClassModel` weighted by the current posterior, scores each sample with its own contribution left out,
and updates `LabelNoise`. The first rounds assume that half of the labels are wrong; a lower prior never separates
classes that swap labels. The last round takes the maximum-likelihood rate.

Embeddings learnt from the labels: the first rounds assume a higher rate where features and labels disagree often; the
last rounds settle, with rate and concentration of maximum likelihood and without new candidates. Such embeddings lie
nearer to the class of their label; `ClassModel.pulled` estimates by how much.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from robustdml.audit.class_model import ClassModel
from robustdml.audit.features import blocks
from robustdml.audit.label_noise import LabelNoise, doubt_names, doubt_wrong_labels, fit_rate
from robustdml.audit.scores import Scores, factor_by_labels, independent_share, score

# Rate of wrong labels in the first rounds: without disagreement, and at most.
FIRST_RATE, MOST_FIRST_RATE = 0.5, 0.9
# Fraction of all samples that is added to λ's denominator as not pulled: a prior.
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
    """Scores and verdicts of all samples after the last round."""

    classes: Tensor  # int64, (N, K): the given label, the likeliest classes, and last C, which is no class
    # Probability of each of them, float32, (N, K); what is missing to 1 belongs to all other classes together.
    posterior: Tensor
    nearest: Tensor  # The class that the features alone say, int64, (N,)


def judge(X: Tensor, labels: Tensor, num_classes: int, learnt: bool = False) -> Judgement:
    """Judge every label."""
    plan = LEARNT if learnt else AS_THEY_ARE
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
        scores = score(X, labels, model, *fitted, min(most, sharpness), pull, scores if settling else None)
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
    return Judgement(classes, posterior, scores.nearest)


def _first_rate(scores: Scores, num_classes: int, growth: float) -> float:
    """Rate in the first rounds; a label is at least twice as likely from its own class as from another."""
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


def _own_part(classes: Tensor, before: Tensor, posterior: Tensor) -> Tensor:
    """Contribution of each sample to the counts of wrong labels of these classes, (N, K)."""
    own = torch.zeros(classes.shape)
    for place in range(1, before.shape[1]):
        own += (classes == before[:, place, None]) * posterior[:, place, None]
    own[:, 0] = 0
    return own
