"""Division of a data set by class into training and test classes."""

import numpy as np

from robustdml.data.dataset import RetrievalData, Split, divide_classes, take_classes

VALIDATION = "-validation"
_SPLIT_SEED = 0


def divide(name: str, whole: Split) -> RetrievalData:
    """Halve the classes; a validation set halves the training classes again."""
    if name.endswith(VALIDATION):
        return _halve(name, _halve(name, whole).train)
    return _halve(name, whole)


def centre(data: RetrievalData) -> RetrievalData:
    """Subtract the mean of the training features, so that cosines compare deviations from it."""
    mean = np.asarray(data.train.inputs).mean(axis=0, dtype=np.float64)
    train, test = (
        Split((split.inputs - mean).astype(np.float32), split.labels, split.class_names)
        for split in (data.train, data.test)
    )
    return RetrievalData(data.name, train, test)


def _halve(name: str, whole: Split) -> RetrievalData:
    parts = divide_classes(whole.num_classes, name, test_fraction=0.5, seed=_SPLIT_SEED)
    train, test = (take_classes(whole, part) for part in parts)
    return RetrievalData(name, train, test)
