"""How far to go from the features as they were: the average of the embedding layer with its start.

What a layer learns from a few classes need not hold for others. Between its start and its end lies a line of layers;
which point of it is best is asked of classes that a trial run leaves out (`robustdml.run.trials`). The idea
is that of Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022, whose share is fixed, or chosen by
clean data.
"""

import numpy as np
from numpy.typing import NDArray

# Points of the line that are tried beside the start, as shares of the furthest.
TRIED = (0.25, 0.5, 0.75, 1.0)
# Held-out classes from which on a gain is tested.
FEWEST_TESTED = 8
# The start counts as much as training on so many classes: a layer that was trained on C goes C / (C + 5) of its way.
PRIOR_CLASSES = 5.0


def furthest_share(num_classes: int) -> float:
    """How far training may move the layer, by the number of classes that it learnt from."""
    return num_classes / (num_classes + PRIOR_CLASSES)


def is_gain(differences: NDArray[np.float64]) -> bool:
    """Tell whether the mean gain over the start is more than chance: at least two standard errors."""
    if differences.mean() < 0:
        return False
    if len(differences) < FEWEST_TESTED or not differences.any():
        return True
    return bool(differences.mean() >= 2 * differences.std(ddof=1) / len(differences) ** 0.5)
