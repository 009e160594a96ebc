"""Class-conditional noise: a rate for each class, and wrong labels of its three nearest classes."""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from experiments.noise.checks import check_labels
from robustdml.arrays import Labels
from robustdml.data.dataset import members_of_classes
from robustdml.errors import UsageError
from robustdml.noise import NoisyLabels, round_half_up
from robustdml_ops.ops import nearest

# Fractions of the wrong labels of a class that go to its nearest classes, the nearest first; fewer if there are fewer
# other classes.
FRACTIONS = (0.5, 0.3, 0.2)


def class_conditional(
    labels: Labels, rate: float, seed: int, num_classes: int, features: NDArray[np.floating]
) -> NoisyLabels:
    """Move a fraction of each class to the classes with the nearest mean features.

    The rates of the classes are drawn uniformly between rate/2 and 3·rate/2 and shifted to the overall rate. The range
    is narrower at high rates, so that the true class stays the most frequent label of its samples. Of the wrong labels
    of a class, 0.5, 0.3 and 0.2 go to the first, second and third nearest class by the cosine of the means.

    References
    ----------
    Patrini et al., "Making Deep Neural Networks Robust to Label Noise: A Loss Correction Approach", CVPR 2017,
    section 2: noise whose transitions depend on the class.

    Examples
    --------
    >>> features = np.array([[0.0, 1.0], [0.1, 1.0], [1.0, 0.1], [1.0, 0.0]])
    >>> noisy, changed = class_conditional(np.arange(4).repeat(10), 0.3, 0, 4, features.repeat(10, axis=0))
    >>> int(changed.sum()), int((noisy[:10] == 1).sum()) >= int((noisy[:10] == 2).sum())
    (12, True)
    """
    check_labels(labels, rate, num_classes)
    if features.ndim != 2 or len(features) != len(labels):
        raise UsageError(f"features of shape {features.shape}: expected ({len(labels)}, F), a row for each label")
    random = np.random.default_rng(seed)
    members = members_of_classes(labels, num_classes)
    occupied = np.flatnonzero(np.bincount(labels, minlength=num_classes))
    noisy = labels.astype(np.int64)
    if not (rate and len(labels)):
        return noisy, np.zeros(len(labels), dtype=bool)
    fractions = _fractions(len(occupied))
    sizes = np.array([len(members[label]) for label in occupied])
    rates = _rates(rate, float(fractions.max()), sizes, random)
    counts = share_out(rates * sizes, round_half_up(rate * len(labels)))
    neighbours = occupied[_nearest_classes([features[members[label]] for label in occupied], len(fractions))]
    for label, count, near in zip(occupied, counts, neighbours, strict=True):
        chosen = random.permutation(members[label])[:count]
        noisy[chosen] = np.repeat(near, share_out(fractions * count, int(count)))
    return noisy, noisy != labels


def share_out(quotas: NDArray[np.floating], total: int) -> NDArray[np.int64]:
    """Round quotas to integers of a given sum, by the largest remainders.

    Examples
    --------
    >>> share_out(np.array([2.5, 1.5, 1.0]), 5)
    array([3, 1, 1])
    """
    counts: NDArray[np.int64] = np.floor(quotas).astype(np.int64)
    up = np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]
    counts[up] += 1
    return counts


def _fractions(num_classes: int) -> NDArray[np.float64]:
    """`FRACTIONS` of the nearest classes, normalised; fewer if there are fewer other classes."""
    if num_classes < 2:
        raise UsageError("labels of one class alone: a wrong label needs a second class with samples; use noise none")
    fractions = np.array(FRACTIONS[: num_classes - 1])
    return np.asarray(fractions / fractions.sum())


def _rates(
    rate: float, largest_fraction: float, sizes: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.float64]:
    """Rates of the classes, whose mean over the samples is `rate`."""
    # At this rate the true label and that of the nearest class are equally frequent.
    highest = 1 / (1 + largest_fraction)
    if rate >= highest:
        raise UsageError(
            f"rate={rate}: of {len(sizes)} classes a class stays the most frequent label of its own samples only below "
            f"a rate of {highest:.3f}; take a lower one, or symmetric noise"
        )
    deviation = random.uniform(-1, 1, size=len(sizes))
    deviation -= np.average(deviation, weights=sizes)
    deviation /= max(1.0, float(np.abs(deviation).max()))
    return rate + min(rate / 2, 0.9 * (highest - rate)) * deviation


def _nearest_classes(samples: list[NDArray[np.floating]], count: int) -> NDArray[np.int64]:
    """The `count` classes with the nearest means, nearest first, (C, count)."""
    centroids = torch.from_numpy(np.stack([normalize(one.astype(np.float32)).mean(axis=0) for one in samples]))
    found: NDArray[np.int64] = np.asarray(nearest(centroids, centroids, count, exclude_self=True).indices)
    return found
