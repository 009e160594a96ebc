"""The classes that trials hold out: splits of the training classes, and groups of few classes.

Trials train on the samples of some classes and measure on those of the others.
"""

import numpy as np

from robustdml.arrays import Doubles, Ints, Labels, Mask, Rows, Singles, evenly
from robustdml.evaluation import judged
from robustdml.networks.start import make_start
from robustdml.run.evidence import CHANCE_ON_GROUPS, Tally

HELD_OUT = 1 / 3
FEWEST_CLASSES = 4
# A trial has at most MOST_CLASSES, and beyond ENOUGH_CLASSES no more than have MOST_SAMPLES together.
MOST_CLASSES = 1000
ENOUGH_CLASSES = 200
MOST_SAMPLES = 6000
# Held-out samples of a split, or of a group of classes, that search.
MOST_QUERIES = 600
# Fewer classes are few: they are split more often.
FEW = 20
SPLITS, SPLITS_OF_FEW = 2, 4
# Classes that a first stage leaves out, for the choice of the second: a share of them, and at most so many.
ASIDE, MOST_ASIDE = 0.1, 1000
# Groups of few classes on which the whitened start is measured.
GROUPS = 5


def splits_of(labels: Labels, seed: int) -> list[tuple[Rows, Rows]]:
    """Samples to train on and samples to test on, of different classes; none where there are too few."""
    present, sizes = np.unique(labels, return_counts=True)
    random = np.random.default_rng(seed)
    order = random.permutation(len(present))[: num_tried(random.permutation(sizes))]
    if len(present) < FEWEST_CLASSES:
        return []
    held_out = max(2, round(HELD_OUT * len(order)))
    wanted = SPLITS_OF_FEW if len(order) < FEW else SPLITS
    folds = [order[i : i + held_out] for i in range(0, len(order) - held_out + 1, held_out)]
    while len(folds) < wanted:  # Few classes are held out several times, in other company.
        again = random.permutation(order)
        folds += [again[i : i + held_out] for i in range(0, len(order) - held_out + 1, held_out)]
    rows = thinned(labels, present[order], random)
    found = []
    for fold in folds[:wanted]:
        tested = np.isin(labels[rows], present[fold])
        if np.unique(labels[rows[tested]], return_counts=True)[1].max() > 1:
            found.append((rows[~tested], rows[tested]))
    return found


def set_aside(labels: Labels, seed: int) -> Mask:
    """Say which samples are of classes that a first stage leaves out, (N,)."""
    sizes = np.bincount(labels)
    several = np.flatnonzero(sizes > 1)
    chosen = np.zeros(len(sizes), dtype=bool)
    count = min(round(ASIDE * len(several)), MOST_ASIDE)
    chosen[np.random.default_rng(seed).choice(several, count, replace=False)] = True
    return np.asarray(chosen[labels])


def num_tried(sizes: Ints) -> int:
    """Number of classes in a trial."""
    affordable = int(np.searchsorted(np.cumsum(sizes), MOST_SAMPLES, side="right"))
    return min(len(sizes), MOST_CLASSES, max(ENOUGH_CLASSES, affordable))


def thinned(labels: Labels, classes: Ints, random: np.random.Generator) -> Rows:
    """Samples of these classes, sorted; of few large classes at most `MOST_SAMPLES`."""
    rows = np.flatnonzero(np.isin(labels, classes))
    return rows if len(rows) <= MOST_SAMPLES else np.sort(random.choice(rows, MOST_SAMPLES, replace=False))


def some_of_each_class(labels: Labels) -> Rows:
    """At most `MOST_QUERIES` samples, evenly from all classes."""
    by_class = np.argsort(labels, kind="stable")
    return np.sort(by_class[evenly(len(labels), MOST_QUERIES)])


def leave_out_by_group(features: Singles, labels: Labels, believed: Mask, width: int, seed: int) -> Tally:
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


def _gains(features: Singles, embeddings: Singles, labels: Labels, asked: Mask) -> Doubles:
    """Differences of Recall@1 and MAP@R, (N, 2); NaN for samples that do not search."""
    queries = np.flatnonzero(asked)
    queries = queries[evenly(len(queries), MOST_QUERIES)]
    return judged(embeddings, labels, queries) - judged(features, labels, queries)
