"""Judging labels in rounds: the experts learn, explanations are compared, and their posterior is what is learnt next.

Features as they are come in two forms, rows of length 1 and columns of variance 1: that counts which predicts the
labels better. Of embeddings learnt from the labels normal densities alone judge: near a sample of a wrong label lie
others of that label, which the network drew there. Nor do labels drawn at random tell how those look that the network
has seen.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robustdml.audit.experts import Experts
from robustdml.audit.explanations import explanations
from robustdml.audit.features import principal_rows
from robustdml.audit.label_noise import anchored
from robustdml.audit.trials import believable

# Densities alone take longer to settle.
ROUNDS, ROUNDS_LEARNT = 4, 10


@dataclass(frozen=True)
class Judgement:
    """Scores and verdicts of all samples after the last round."""

    classes: Tensor  # int64, (N, K): the given label, the likeliest classes, and last C, which is no class
    # Probability of each of them, float32, (N, K); what is missing to 1 belongs to all other classes together.
    posterior: Tensor
    nearest: Tensor  # The class that the features alone say, int64, (N,)
    # Probability that each label is right under each explanation that chance does not exclude, (E, N).
    qualities: Tensor
    overlap: Tensor  # Probability that the features alone leave to other classes than the likeliest, (N,)


def judge(features: NDArray[np.generic], labels: Tensor, num_classes: int, learnt: bool = False) -> Judgement:
    """Judge every label by features (N, F)."""
    unit = principal_rows(features)
    if learnt:
        tried = [Experts(unit, labels, num_classes, neighbours=False)]
    else:
        columns = principal_rows(features, scaled=True)
        tried = [Experts(X, labels, num_classes, columns) for X in (unit, columns)]
    found = [explanations(experts) for experts in tried]
    likelihoods = [max(float(one.likelihood.mean()) for one in explained) for _, explained, _ in found]
    best = likelihoods.index(max(likelihoods))
    experts, (evidence, explained, weights) = tried[best], found[best]
    # Afterwards samples of the other folds have learnt from a held-out label, and the regression would repeat it.
    if not explained[0].weights.logistic:
        experts.logits = experts.columns = None
    for _ in range((ROUNDS_LEARNT if learnt else ROUNDS) - 1):
        # The last column, no class, is not fitted.
        counting = anchored(labels, evidence.classes, explained[0].posterior, num_classes)
        experts.learn(evidence.classes[:, :-1], counting[:, :-1])
        evidence, explained, weights = explanations(experts)
    posterior, qualities = believable(experts, evidence, explained, weights, learnt)
    features_say = evidence.log_probabilities(explained[0].weights, num_classes)
    top = features_say[:, :-2].max(1, keepdim=True)
    nearest = evidence.classes.gather(1, top.indices)[:, 0]
    return Judgement(evidence.classes, posterior, nearest, qualities, 1 - top.values[:, 0].exp())
