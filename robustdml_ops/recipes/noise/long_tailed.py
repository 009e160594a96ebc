"""Long-tailed noise: wrong labels flow to a few popular classes."""

import numpy as np

from robustdml_ops.recipes.noise.shares import Labels, NoisyLabels, check_labels, choose_share_of_each_class


def long_tailed(labels: Labels, rate: float, seed: int, num_classes: int) -> NoisyLabels:
    """Move a given share of *each* class to the others, to each in proportion to its popularity.

    Popularity follows Zipf's law: the classes are ranked at random, and the r-th is chosen 1/r times as often as the
    first. So do names that people give when they are not sure: most often one that comes to everybody's mind. Of 1,000
    classes the ten most popular get two fifths of all wrong labels.

    Parameters
    ----------
    labels : ndarray
        True labels, integers in 0..C-1, (N,).
    rate : float
        Share of each class that is relabelled, in [0, 1]; of n samples exactly round(rate·n), halves up.
    seed : int
        Seed of the ranks and of both choices.
    num_classes : int
        Number of classes, C; those without samples receive wrong labels as well.

    Returns
    -------
    noisy : ndarray
        int64, (N,).
    changed : ndarray
        bool, (N,): True where the label is now wrong.

    Raises
    ------
    UsageError
        A rate outside [0, 1], labels of another kind or range, or one class alone with a rate above 0.

    Examples
    --------
    >>> labels = np.repeat(np.arange(4), 600)
    >>> noisy, changed = long_tailed(labels, rate=0.5, seed=0, num_classes=4)
    >>> int(changed.sum()), len(np.unique(noisy[changed]))
    (1200, 4)
    """
    check_labels(labels, rate, num_classes)
    random = np.random.default_rng(seed)
    changed = choose_share_of_each_class(labels, rate, random, num_classes)
    popularity = 1 / (1 + random.permutation(num_classes))
    popularity /= popularity.sum()
    noisy = labels.astype(np.int64)
    undecided = np.flatnonzero(changed)
    # A draw of the true class is drawn again: what is left is in proportion to the popularity of the others.
    while len(undecided):
        noisy[undecided] = random.choice(num_classes, size=len(undecided), p=popularity)
        undecided = undecided[noisy[undecided] == labels[undecided]]
    return noisy, changed
