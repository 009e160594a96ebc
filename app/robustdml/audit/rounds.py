"""Judging labels in rounds: fit the classes, score every sample without itself, estimate the noise.

Features as they are: each round fits a `ClassModel` weighted by the current posterior, and takes the mean of the
explanations that chance does not exclude, see `robustdml.audit.explanations`.

Embeddings learnt from the labels: the first rounds assume that half of the labels are wrong, and more where features
and labels disagree often; a lower rate never separates classes that swap labels. The last rounds settle, with rate and
concentration of maximum likelihood and without new candidates. Such embeddings lie nearer to the class of their label;
`ClassModel.pulled` estimates by how much.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustdml.audit.class_model import ClassModel, Moments
from robustdml.audit.experts import Experts
from robustdml.audit.explanations import explanations
from robustdml.audit.features import blocks, principal_rows
from robustdml.audit.label_noise import LabelNoise, anchored, doubt_names, fit_rate
from robustdml.audit.scores import Scores, independent_share, score

# Rate of wrong labels in the first rounds: without disagreement, and at most.
FIRST_RATE, MOST_FIRST_RATE = 0.5, 0.9
# Fraction of all samples that is added to λ's denominator as not pulled: a prior.
NOT_PULLED = 0.05
# Rounds on features as they are.
ROUNDS = 4


class Plan(NamedTuple):
    """Rounds for learnt embeddings, chosen on validation letters, docs/audit.md."""

    rounds: int = 10  # All of them
    settling: int = 4  # The last ones, which settle
    # How much the rate of the first rounds grows with the share of labels that the features disagree with.
    growth: float = 0.8
    # Of the share of independent dimensions, before the rounds settle and then: classes that are mixed up are only told
    # apart by more than is right in the end.
    sharpness: float = 1.7
    settled: float = 1.35


@dataclass(frozen=True)
class Judgement:
    """Scores and verdicts of all samples after the last round."""

    classes: Tensor  # int64, (N, K): the given label, the likeliest classes, and last C, which is no class
    # Probability of each of them, float32, (N, K); what is missing to 1 belongs to all other classes together.
    posterior: Tensor
    nearest: Tensor  # The class that the features alone say, int64, (N,)
    # Probability that each label is right under each explanation that chance does not exclude, (E, N).
    qualities: Tensor


def judge(features: NDArray[np.generic], labels: Tensor, num_classes: int, learnt: bool = False) -> Judgement:
    """Judge every label by features (N, F)."""
    unit = principal_rows(features)
    if learnt:
        return _judge_learnt(unit, labels, num_classes)
    columns = principal_rows(features, scaled=True)
    tried = [(Experts(X, labels, num_classes, columns)) for X in (unit, columns)]
    found = [explanations(experts) for experts in tried]
    # The form of the features that tells the labels best.
    best = max(range(2), key=lambda place: max(float(one.likelihood.mean()) for one in found[place][1]))
    experts = tried[best]
    evidence, explained, weights = found[best]
    for _ in range(ROUNDS - 1):
        # The last column, no class, is not fitted.
        counting = anchored(labels, evidence.classes, explained[0].posterior, num_classes)
        experts.learn(evidence.classes[:, :-1], counting[:, :-1])
        evidence, explained, weights = explanations(experts)
    posterior = sum((w * one.posterior for w, one in zip(weights, explained, strict=True)), torch.zeros(()))
    features_say = evidence.log_probabilities(explained[0].weights, num_classes)
    likeliest = features_say[:, :-2].argmax(1, keepdim=True)
    qualities = torch.stack([one.posterior[:, 0] for one in explained])
    return Judgement(evidence.classes, posterior, evidence.classes.gather(1, likeliest)[:, 0], qualities)


def _judge_learnt(X: Tensor, labels: Tensor, num_classes: int) -> Judgement:
    plan = Plan()
    classes, posterior = labels[:, None], torch.ones(len(X), 1)
    model, fitted = ClassModel.fit(Moments.of(X, classes, posterior, num_classes)), (classes, posterior)
    before: tuple[Tensor, Tensor] | None = None
    scores: Scores | None = None
    by_features, rate, pull = posterior, FIRST_RATE, 0.0
    for number in range(plan.rounds):
        last, settling = number == plan.rounds - 1, number >= plan.rounds - plan.settling
        if number:
            # The last column, no class, is not fitted.
            before, fitted = (classes, posterior), (classes[:, :-1], posterior[:, :-1])
            model = ClassModel.fit(Moments.of(X, *fitted, num_classes))
            pull = _pull(X, model, *fitted)
        sharpness = (plan.settled if settling else plan.sharpness) * independent_share(X, model, *fitted)
        scores = score(X, labels, model, *fitted, min(1.0, sharpness), pull, scores if settling else None)
        if before is None:
            disagree = fit_rate(scores.own_class(), torch.full((len(X),), 1 / num_classes))
            # A label is at least twice as likely from its own class as from another.
            rate = min(FIRST_RATE + plan.growth * disagree, MOST_FIRST_RATE, num_classes / (num_classes + 2))
            noise = LabelNoise.unknown(num_classes, rate)
        else:
            noise = LabelNoise.count(labels, classes, posterior, num_classes, rate)
        if settling:
            rate = fit_rate(scores.own_class(), noise.popularity[labels])
            noise = replace(noise, rate=rate)
            noise = replace(noise, concentration=noise.likeliest_concentration())
        if last:
            by_features = scores.by_features()
        classes, posterior = scores.classes, _posterior(labels, scores, noise, before)
        if not last:
            posterior = anchored(labels, classes, posterior, num_classes)
    assert scores is not None
    posterior = doubt_names(labels, classes, posterior, by_features, num_classes)
    return Judgement(classes, posterior, scores.nearest, posterior[None, :, 0])


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
