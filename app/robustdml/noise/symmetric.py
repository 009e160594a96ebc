"""Symmetric noise: wrong labels that have nothing to do with the right ones."""

import numpy as np

from robustdml.noise.shares import Labels, NoisyLabels, check_labels, choose_share_of_each_class


def symmetric(labels: Labels, rate: float, seed: int, num_classes: int) -> NoisyLabels:
    """Move a given share of *each* class to all other classes, uniformly.

    Examples
    --------
    >>> noisy, changed = symmetric(np.repeat(np.arange(4), 10), rate=0.3, seed=0, num_classes=4)
    >>> int(changed.sum()), bool((noisy[~changed] == np.repeat(np.arange(4), 10)[~changed]).all())
    (12, True)
    """
    check_labels(labels, rate, num_classes)
    random = np.random.default_rng(seed)
    changed = choose_share_of_each_class(labels, rate, random, num_classes)
    noisy = labels.astype(np.int64)
    # A draw among the C-1 others: values from the true label on are moved up by one, so that it is never drawn.
    drawn = random.integers(0, max(num_classes - 1, 1), size=int(changed.sum()))
    noisy[changed] = drawn + (drawn >= noisy[changed])
    return noisy, changed
