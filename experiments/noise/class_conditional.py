"""Class-conditional noise: some classes are mistaken more often than others, and each for its own few neighbours."""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from robustdml.errors import UsageError
from robustdml.noise import Labels, NoisyLabels, check_labels, members_of_classes, round_half_up
from robustdml_ops.ops import nearest

# How the wrong labels of a class are shared out among its nearest classes, the nearest first; of these fewer where
# there are fewer other classes.
SHARES = (0.5, 0.3, 0.2)


def class_conditional(
    labels: Labels, rate: float, seed: int, num_classes: int, features: NDArray[np.floating]
) -> NoisyLabels:
    """Move a share of its own of each class to the classes that look most like it.

    The rates of the classes are drawn uniformly between rate/2 and 3·rate/2, then moved together until the whole has
    the rate that is asked for. They are drawn nearer together where else some class would not stay the most frequent
    label of its own samples. Wrong labels of a class go to the three classes whose mean features are nearest to its
    own, by the cosine: half of them to the nearest, 0.3 and 0.2 to the next. So the noise is a matrix of transitions,
    as in the paper, with few entries in a row.

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
    shares = _shares(len(occupied))
    sizes = np.array([len(members[label]) for label in occupied])
    rates = _rates(rate, float(shares.max()), sizes, random)
    counts = share_out(rates * sizes, round_half_up(rate * len(labels)))
    neighbours = occupied[_nearest_classes([features[members[label]] for label in occupied], len(shares))]
    for label, count, near in zip(occupied, counts, neighbours, strict=True):
        chosen = random.permutation(members[label])[:count]
        noisy[chosen] = np.repeat(near, share_out(shares * count, int(count)))
    return noisy, noisy != labels


def share_out(quotas: NDArray[np.floating], total: int) -> NDArray[np.int64]:
    """Round quotas to whole numbers of a given sum, up where they are nearest to it (largest remainders).

    Examples
    --------
    >>> share_out(np.array([2.5, 1.5, 1.0]), 5)
    array([3, 1, 1])
    """
    counts: NDArray[np.int64] = np.floor(quotas).astype(np.int64)
    up = np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]
    counts[up] += 1
    return counts


def _shares(num_classes: int) -> NDArray[np.float64]:
    """Shares of the nearest classes, as many as there are of `SHARES` and of other classes."""
    if num_classes < 2:
        raise UsageError("labels of one class alone: a wrong label needs a second class with samples; use noise none")
    shares = np.array(SHARES[: num_classes - 1])
    return np.asarray(shares / shares.sum())


def _rates(
    rate: float, largest_share: float, sizes: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.float64]:
    """Draw the rates of the classes, with a mean over the samples that is `rate` exactly."""
    # Here as many samples of a class have their own label as have that of its nearest class.
    highest = 1 / (1 + largest_share)
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
    """Of each class the `count` others whose mean is nearest, the nearest first, (C, count)."""
    centroids = torch.from_numpy(np.stack([normalize(one.astype(np.float32)).mean(axis=0) for one in samples]))
    found: NDArray[np.int64] = np.asarray(nearest(centroids, centroids, count, exclude_self=True).indices)
    return found
