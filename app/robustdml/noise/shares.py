"""What noise models share: checks of labels and rate, and the choice of a share of each class."""

import numpy as np
from numpy.typing import NDArray

from robustdml.errors import UsageError

Labels = NDArray[np.int64]
NoisyLabels = tuple[Labels, NDArray[np.bool_]]


def check_labels(labels: Labels, rate: float, num_classes: int) -> None:
    """Refuse what no noise model can work with."""
    if not 0 <= rate <= 1:
        raise UsageError(f"rate={rate}: the share of wrong labels must lie between 0 and 1")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UsageError(f"labels: {labels.dtype} of shape {labels.shape}; expected integers of shape (N,)")
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise UsageError(f"labels run from {labels.min()} to {labels.max()}; expected 0 to {num_classes - 1}")
    if num_classes < 2 and rate > 0 and len(labels):
        raise UsageError(f"num_classes={num_classes}: a wrong label needs a second class; use noise none")


def members_of_classes(labels: Labels, num_classes: int) -> list[NDArray[np.int64]]:
    """Sample numbers of each class, ascending."""
    sizes = np.bincount(labels, minlength=num_classes)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])


def round_half_up(share: float) -> int:
    """Whole number nearest to a count of samples, halves up."""
    return int(np.floor(share + 0.5))


def choose_share_of_each_class(
    labels: Labels, rate: float, random: np.random.Generator, num_classes: int
) -> NDArray[np.bool_]:
    """Choose at random which samples get a wrong label: of n samples of a class exactly round(rate·n), halves up."""
    chosen = np.zeros(len(labels), dtype=bool)
    for members in members_of_classes(labels, num_classes):
        chosen[random.permutation(members)[: round_half_up(rate * len(members))]] = True
    return chosen
