"""Gain of the whitened start on classes that it was not fitted to: of few classes this tells more than trials do."""

import numpy as np
from numpy.typing import NDArray

from robustdml.evaluation import judged
from robustdml.networks.start import make_start
from robustdml.run.evidence import CHANCE_ON_GROUPS, Tally

GROUPS = 5
# Samples that search, of each group.
MOST_QUERIES = 600


def leave_out_by_group(
    features: NDArray[np.float32], labels: NDArray[np.int64], believed: NDArray[np.bool_], width: int, seed: int
) -> Tally:
    """For each group of classes, whiten features (N, F) by half of the other classes' samples, then by the other half.

    Samples of the group search among themselves and the half that whitening was not fitted to. Whitening moves samples
    that it was fitted to away from their neighbours; among these, samples of the group would find each other too well.
    """
    random = np.random.default_rng(seed)
    start = make_start(features, width, np.flatnonzero(believed))
    tally = Tally(int(labels.max()) + 1, CHANCE_ON_GROUPS)
    order = np.lexsort((random.random(len(labels)), labels))
    half = np.empty(len(labels), np.int64)
    half[order] = np.arange(len(labels)) % 2
    classes = random.permutation(np.unique(labels))
    for group in np.array_split(classes, min(GROUPS, len(classes))):
        left_out = np.isin(labels, group)
        for seen in range(2):
            fitted = start.whitened(features, labels, np.flatnonzero(believed & ~left_out & (half == seen)))
            rows = np.flatnonzero(left_out | (half != seen))
            embeddings = fitted.embed(features[rows])
            # By the labels given, and among those alone that the audit keeps.
            gains = [
                _gains(features[rows[part]], embeddings[part], labels[rows[part]], left_out[rows[part]])
                for part in (np.arange(len(rows)), np.flatnonzero(believed[rows]))
            ]
            tally.add(labels[rows], *gains)
    return tally


def _gains(
    features: NDArray[np.float32], embeddings: NDArray[np.float32], labels: NDArray[np.int64], asked: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Differences of Recall@1 and MAP@R, (N, 2); NaN for samples that do not search."""
    queries = np.flatnonzero(asked)
    queries = queries[np.linspace(0, len(queries) - 1, min(len(queries), MOST_QUERIES)).astype(np.int64)]
    return judged(embeddings, labels, queries) - judged(features, labels, queries)
