"""How many labels are wrong: estimates with intervals."""

import numpy as np
from numpy.typing import NDArray

# Of the normal distribution, for 95 %.
_Z = 1.959964


def wrong_share(wrong: NDArray[np.floating], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Rate of wrong labels of each class with Wilson's 95 % interval, (C, 3); its variance has Σ p(1 − p) added."""
    counts = np.bincount(labels, minlength=num_classes).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.bincount(labels, weights=wrong, minlength=num_classes) / counts
        unknown = np.bincount(labels, weights=wrong * (1 - wrong), minlength=num_classes) / counts**2
        shrunk = 1 + _Z**2 / counts
        middle = (share + _Z**2 / (2 * counts)) / shrunk
        half = _Z * np.sqrt(share * (1 - share) / counts + unknown + _Z**2 / (4 * counts**2)) / shrunk
    ends = np.stack([share, np.maximum(middle - half, 0), np.minimum(middle + half, 1)], 1)
    return np.asarray(ends)
