"""Semantic noise: a class is mistaken for one that is near it in a tree of classes."""

import numpy as np

from experiments.noise.checks import check_labels
from experiments.taxonomy import ClassTree
from robustdml.arrays import Labels
from robustdml.noise import NoisyLabels, choose_of_each_class


def semantic(labels: Labels, rate: float, seed: int, tree: ClassTree) -> NoisyLabels:
    """Move a fraction `rate` of each class to its nearest classes in a tree.

    The wrong label is drawn uniformly among the leaves under the first ancestor with several children, without the
    subtree of the true class.

    References
    ----------
    Barbany et al., "ProcSim: Proxy-based Confidence for Robust Similarity Learning", WACV 2024, section 3.6.

    Examples
    --------
    >>> tree = ClassTree([("bird",), ("bird",), ("fish",)])
    >>> noisy, changed = semantic(np.repeat([0, 1], 4), rate=0.5, seed=0, tree=tree)
    >>> sorted(zip(np.repeat([0, 1], 4)[changed].tolist(), noisy[changed].tolist()))
    [(0, 1), (0, 1), (1, 0), (1, 0)]
    """
    check_labels(labels, rate, tree.num_classes)
    random = np.random.default_rng(seed)
    changed = choose_of_each_class(labels, rate, random, tree.num_classes)
    noisy = labels.astype(np.int64)
    noisy[changed] = tree.draw_confused(noisy[changed], random)
    return noisy, changed
