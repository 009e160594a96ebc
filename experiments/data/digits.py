"""Handwritten digits of 8×8 pixels, which come with scikit-learn: few classes, and features that need no network.

Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

from functools import partial

import numpy as np
from sklearn.datasets import load_digits as read_digits

from experiments.data.splits import divide
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named import NamedData

# Pixels are counts of ink in a 4×4 block of the scan.
_MOST_INK = 16


def load_digits(name: str = "digits") -> RetrievalData:
    """The 1,797 digits, their 64 pixels as features.

    Examples
    --------
    >>> load_digits().train.inputs.shape[1], load_digits().test.num_classes
    (64, 5)
    """
    pixels, labels = read_digits(return_X_y=True)
    features = (pixels / _MOST_INK).astype(np.float32)
    return divide(name, Split(features, labels.astype(np.int64), tuple(f"digit {digit}" for digit in range(10))))


NAMED = {name: NamedData("digits", partial(load_digits, name)) for name in ("digits", "digits-validation")}
