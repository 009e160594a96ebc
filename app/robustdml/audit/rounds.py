"""Judging labels in rounds: the experts learn, explanations are compared, and their posterior is what is learnt next.

Features as they are come in two forms, rows of length 1 and columns of variance 1, each with folds of its own. Rounds
may swing between two states. So the last two rounds of both forms judge together. Of embeddings learnt from the labels
normal densities alone judge, in their last round: near a sample of a wrong label lie others of that label, which the
network drew there. Nor do labels drawn at random tell how those look that the network has seen.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robustdml.arrays import Array
from robustdml.audit.experts import Experts
from robustdml.audit.explanations import anchored, believable, explanations
from robustdml.audit.features import principal_rows

# All rounds, and those of them that judge. Densities alone take longer to settle.
ROUNDS, ROUNDS_LEARNT = (4, 2), (10, 1)
# Exponent of the likelihood of a label, by which the forms are weighed: chosen on the choosing sets of
# experiments/bench/audit_sets.py and on drawn ones.
LIKELIHOOD = 10.0
# The shift by checked labels lies between ±WIDEST, and is found by so many halvings; least probability of a logit.
WIDEST, HALVINGS, LEAST = 50.0, 50, 1e-6


@dataclass(frozen=True)
class Judgement:
    """Probabilities and likeliest classes of all samples."""

    right: Tensor  # Probability that the label is right, float32, (N,)
    proposed: Tensor  # The likeliest other class, int64, (N,)
    proposed_right: Tensor  # Probability of that, (N,)
    no_class: Tensor  # Probability that it is of none of the classes, (N,)
    nearest: Tensor  # The class that the features alone say, int64, (N,)
    # Probability that each label is right under each explanation that chance does not exclude, (E, N).
    qualities: Tensor
    overlap: Tensor  # Probability that the features alone leave to other classes than the likeliest, (N,)


@dataclass(frozen=True)
class _Round:
    likelihood: float  # Of a label after the first round
    classes: Tensor  # int64, (N, K): the given label, the likeliest classes, and last C, which is no class
    posterior: Tensor  # Probability of each of them, (N, K)
    nearest: Tensor
    qualities: Tensor
    overlap: Tensor


def judge(features: Array, labels: Tensor, num_classes: int, learnt: bool = False) -> Judgement:
    """Judge every label by features (N, F)."""
    unit = principal_rows(features)
    if learnt:
        return _together(_last_rounds(Experts(unit, labels, num_classes, neighbours=False), learnt))
    columns = principal_rows(features, scaled=True)
    forms = [Experts(X, labels, num_classes, columns, seed=number) for number, X in enumerate((unit, columns))]
    return _together([found for experts in forms for found in _last_rounds(experts, learnt)])


def _last_rounds(experts: Experts, learnt: bool) -> list[_Round]:
    rounds, last = ROUNDS_LEARNT if learnt else ROUNDS
    labels, num_classes = experts.labels, experts.num_classes
    evidence, explained, weights = explanations(experts)
    likelihood = max(float(one.likelihood.mean()) for one in explained)
    # Afterwards samples of the other folds have learnt from a held-out label, and the regression would repeat it.
    if not explained[0].weights.logistic:
        experts.logits = experts.columns = None
    found = []
    for number in range(1, rounds):
        # The last column, no class, is not fitted.
        counting = anchored(labels, evidence.classes, explained[0].posterior, num_classes)
        experts.learn(evidence.classes[:, :-1], counting[:, :-1])
        evidence, explained, weights = explanations(experts)
        if number < rounds - last:
            continue
        posterior, qualities = believable(experts, evidence, explained, weights, learnt)
        top = evidence.log_probabilities(explained[0].weights, num_classes)[:, :-2].max(1, keepdim=True)
        nearest = evidence.classes.gather(1, top.indices)[:, 0]
        found.append(_Round(likelihood, evidence.classes, posterior, nearest, qualities, 1 - top.values[:, 0].exp()))
    return found


def _together(rounds: list[_Round]) -> Judgement:
    weights = (LIKELIHOOD * torch.tensor([one.likelihood for one in rounds])).softmax(0)
    mean = torch.stack([one.posterior[:, [0, -1]] for one in rounds], 2) @ weights
    classes = torch.cat([one.classes[:, 1:-1] for one in rounds], 1)
    parts = torch.cat([weight * one.posterior[:, 1:-1] for weight, one in zip(weights, rounds, strict=True)], 1)
    # A class that several rounds name has the sum of what they give it.
    named = torch.stack([parts.where(classes == one[:, None], 0).sum(1) for one in classes.unbind(1)], 1)
    best = named.max(1, keepdim=True)
    return Judgement(
        right=mean[:, 0],
        proposed=classes.gather(1, best.indices)[:, 0],
        proposed_right=best.values[:, 0],
        no_class=mean[:, 1],
        nearest=rounds[int(weights.argmax())].nearest,
        qualities=torch.cat([one.qualities for one in rounds]),
        overlap=torch.stack([one.overlap for one in rounds], 1) @ weights,
    )


def with_checked(judged: Judgement, checked: Tensor) -> Judgement:
    """Judge with knowledge of some labels: ``checked`` (N,) float64, 1 for right ones, 0 for wrong ones, else NaN.

    Features tell least about the number of wrong labels, because overlapping classes look like wrong labels. So one
    number is learnt, the shift b of all log-odds that a label is right, at its highest posterior density under a normal
    prior:

        b = argmax Σ_checked log σ(±(logit q_i + b)) − b²/2

    The labels may be chosen by q, as suspects are: the shift holds for labels of any q.
    """
    known = ~checked.isnan()
    if not known.any():
        return judged
    truth = checked[known]
    right = _shifted(judged.right, known, truth)
    qualities = torch.stack([_shifted(one, known, truth) for one in judged.qualities])  # each explanation by itself
    # The other classes gain what the label loses, in proportion.
    others = ((1 - right) / (1 - judged.right.double()).clamp(min=LEAST)).to(judged.no_class.dtype)
    return replace(
        judged,
        right=right.to(judged.right.dtype),
        proposed_right=(judged.proposed_right * others).clamp(max=1),
        no_class=(judged.no_class * others).clamp(max=1),
        qualities=qualities.to(judged.qualities.dtype),
    )


def _shifted(right: Tensor, known: Tensor, truth: Tensor) -> Tensor:
    """Probabilities (N,) with the shift that checked labels ask for; of these the truth."""
    z = torch.logit(right.double(), LEAST)
    low, high = -WIDEST, WIDEST
    for _ in range(HALVINGS):  # the slope falls with b
        shift = (low + high) / 2
        slope = float((truth - torch.sigmoid(z[known] + shift)).sum()) - shift
        low, high = (shift, high) if slope > 0 else (low, shift)
    found = torch.sigmoid(z + low)
    found[known] = truth
    return found
