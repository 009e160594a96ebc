"""The split of the data sets that are not divided by their makers: classes to train on and classes to test on."""

import numpy as np

from robustdml_ops.recipes.data.dataset import RetrievalData, Split, divide_classes, take_classes

VALIDATION = "-validation"
_SPLIT_SEED = 0


def divide(name: str, whole: Split) -> RetrievalData:
    """Divide a whole data set by class.

    Parameters
    ----------
    name : str
        ``NAME`` trains on a half of the classes and tests on the other. ``NAME-validation`` divides the training half
        again in the same way, so that it holds no class that ``NAME`` is tested on.
    whole : Split
        All classes, at least four.

    Returns
    -------
    RetrievalData
        The two parts, the same at every call.
    """
    if name.endswith(VALIDATION):
        return _halve(name, _halve(name, whole).train)
    return _halve(name, whole)


def centre(data: RetrievalData) -> RetrievalData:
    """Move the origin of features to the mean of the training samples: angles mean little seen from far away.

    Parameters
    ----------
    data : RetrievalData
        Features; those of the test part have no say in where the origin is.

    Returns
    -------
    RetrievalData
        Features in float32.
    """
    mean = data.train.inputs.mean(axis=0, dtype=np.float64)
    train, test = (
        Split((split.inputs - mean).astype(np.float32), split.labels, split.class_names)
        for split in (data.train, data.test)
    )
    return RetrievalData(data.name, train, test)


def _halve(name: str, whole: Split) -> RetrievalData:
    parts = divide_classes(whole.num_classes, name, test_fraction=0.5, seed=_SPLIT_SEED)
    return RetrievalData(name, *(take_classes(whole, part) for part in parts))
