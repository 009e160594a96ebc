"""What is said of each label."""

import numpy as np
from numpy.typing import NDArray

RIGHT, WRONG, NOT_SURE, NO_CLASS = "right", "wrong", "not sure", "belongs to no class"
# What an audit says of a label.
VERDICTS = (RIGHT, WRONG, NOT_SURE, NO_CLASS)
# A label is called right from here on, and wrong up to what is missing to 1.
SURE = 2 / 3
# A class of fewer samples has no likeness to judge by.
FEWEST_SAMPLES = 3


def verdicts(
    quality: NDArray[np.floating],
    proposed: NDArray[np.floating],
    of_no_class: NDArray[np.floating],
    sizes: NDArray[np.int64],
) -> NDArray[np.str_]:
    """Decide on each label."""
    out = np.full(len(quality), NOT_SURE, dtype=f"<U{max(map(len, VERDICTS))}")
    out[quality >= SURE] = RIGHT
    out[quality <= 1 - SURE] = WRONG
    out[(quality <= 1 - SURE) & (of_no_class > proposed)] = NO_CLASS
    out[sizes < FEWEST_SAMPLES] = NOT_SURE
    return out
