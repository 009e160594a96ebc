"""Gain of the whitened start on each class, whitened without it: of few classes this tells more than trials do."""

import numpy as np
from numpy.typing import NDArray

from robustdml.evaluation import judged
from robustdml.networks.start import make_start
from robustdml.run.evidence import Tally


def leave_each_out(
    features: NDArray[np.float32], labels: NDArray[np.int64], believed: NDArray[np.bool_], width: int
) -> Tally:
    """For each class, whiten features (N, F) by the other classes; its samples search among all samples."""
    start = make_start(features, width, np.flatnonzero(believed))
    tally = Tally(int(labels.max()) + 1)
    # By the labels given, and among those alone that the audit keeps.
    parts = [
        (rows, judged(features[rows], labels[rows])) for rows in (np.arange(len(labels)), np.flatnonzero(believed))
    ]
    for one in np.unique(labels):
        whitened = start.whitened(features, labels, np.flatnonzero(believed & (labels != one)))
        embeddings = whitened.embed(features)
        gains = [
            judged(embeddings[rows], labels[rows], np.flatnonzero(labels[rows] == one)) - before
            for rows, before in parts
        ]
        tally.add(labels, *gains)
    return tally
