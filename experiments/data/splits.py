"""The split of the data sets that are not divided by their makers: classes to train on and classes to test on."""

import numpy as np

from robustdml.data.dataset import RetrievalData, Split, divide_classes, take_classes

VALIDATION = "-validation"
_SPLIT_SEED = 0


def divide(name: str, whole: Split) -> RetrievalData:
    """Divide a whole data set by class."""
    if name.endswith(VALIDATION):
        return _halve(name, _halve(name, whole).train)
    return _halve(name, whole)


def centre(data: RetrievalData) -> RetrievalData:
    """Move the origin of features to the mean of the training samples: angles mean little seen from far away."""
    mean = data.train.inputs.mean(axis=0, dtype=np.float64)
    train, test = (
        Split((split.inputs - mean).astype(np.float32), split.labels, split.class_names)
        for split in (data.train, data.test)
    )
    return RetrievalData(data.name, train, test)


def _halve(name: str, whole: Split) -> RetrievalData:
    parts = divide_classes(whole.num_classes, name, test_fraction=0.5, seed=_SPLIT_SEED)
    train, test = (take_classes(whole, part) for part in parts)
    return RetrievalData(name, train, test)
