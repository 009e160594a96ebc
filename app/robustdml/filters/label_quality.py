"""Probability that each label is right, by the features before training: the auditor's model in a quick form.

It asks densities and neighbours alone, in a few weights, and takes the likeliest explanation, even or by likeness: a
filter needs an order of the samples and a cut at one half, not a verdict that several explanations agree on.
"""

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Floats, Labels
from robustdml.audit.experts import Experts, Weights
from robustdml.audit.explanations import BY_LIKENESS, EVENLY, anchored, explain, explain_all, flatter
from robustdml.audit.features import WIDEST, principal_rows
from robustdml.networks.start import make_start

ROUNDS = 3
WEIGHTS = [
    Weights(*pair)
    for pair in ((0.0, 1.0), (0.0, 2.6), (0.1, 1.0), (0.2, 1.6), (0.4, 0.3), (0.4, 1.0), (1.0, 0.0), (1.0, 1.0))
]
DENSITIES_ALONE = [Weights(0.4, 0.0), Weights(1.0, 0.0)]
# Rows that explanations are compared on, and samples of which all are asked about at once.
CHOOSING_ROWS, FEW_SAMPLES = 512, 2048
# Samples × classes up to which start and trials ask for a verdict that no filter needs: it takes about a minute.
MOST_JUDGED = 10**10


@torch.no_grad()
def label_quality(features: Floats, labels: Labels) -> Tensor:
    """Judge every label, (N,), by features (N, F)."""
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        return torch.ones(len(labels))
    if features.shape[1] > WIDEST:
        features = make_start(features, WIDEST).embed(features)
    given, count = torch.from_numpy(numbers.astype(np.int64)), len(labels)
    experts = Experts(principal_rows(features), given, len(classes))
    weights = DENSITIES_ALONE if experts.votes is None else WEIGHTS
    everyone, rows = torch.arange(count), torch.linspace(0, count - 1, min(count, CHOOSING_ROWS)).long()
    used = [one.density for pair in weights for one in (pair, flatter(pair))]
    for number in range(ROUNDS):
        evidence = experts.evidence(everyone if count <= FEW_SAMPLES else rows, used)
        some = evidence.rows(rows) if count <= FEW_SAMPLES else evidence
        found = [one for kind in (EVENLY, BY_LIKENESS) for one in explain(some, len(classes), kind, weights)]
        best = max(found, key=lambda one: one.mean)
        if count > FEW_SAMPLES:
            chosen = [best.weights.density, flatter(best.weights).density]
            evidence = experts.evidence(everyone, chosen)
        if count > len(rows):
            best = explain_all(evidence, len(classes), best)
        if number < ROUNDS - 1:
            counting = anchored(given, evidence.classes, best.posterior, len(classes))
            # The last column, no class, is not fitted.
            experts.learn(evidence.classes[:, :-1], counting[:, :-1])
    return best.posterior[:, 0]
