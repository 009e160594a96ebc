"""Long-tailed noise: wrong labels flow to a few popular classes."""

import numpy as np

from experiments.noise.checks import check_labels
from robustdml.arrays import Labels
from robustdml.noise import NoisyLabels, choose_of_each_class


def long_tailed(labels: Labels, rate: float, seed: int, num_classes: int) -> NoisyLabels:
    """Move a fraction `rate` of *each* class to the others, in proportion to their popularity.

    Popularity follows Zipf's law: the classes are ranked at random, and the r-th is chosen with a weight of 1/r. Of
    1,000 classes the ten most popular get two fifths of all wrong labels.

    Examples
    --------
    >>> labels = np.repeat(np.arange(4), 600)
    >>> noisy, changed = long_tailed(labels, rate=0.5, seed=0, num_classes=4)
    >>> int(changed.sum()), len(np.unique(noisy[changed]))
    (1200, 4)
    """
    check_labels(labels, rate, num_classes)
    random = np.random.default_rng(seed)
    changed = choose_of_each_class(labels, rate, random, num_classes)
    popularity = 1 / (1 + random.permutation(num_classes))
    popularity /= popularity.sum()
    noisy = labels.astype(np.int64)
    undecided = np.flatnonzero(changed)
    # Draws of the true class are repeated, which keeps the proportions of the others.
    while len(undecided):
        noisy[undecided] = random.choice(num_classes, size=len(undecided), p=popularity)
        undecided = undecided[noisy[undecided] == labels[undecided]]
    return noisy, changed
