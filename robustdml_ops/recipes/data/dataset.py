"""The data set type that everything else takes, and its split by class."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustdml_ops.recipes.errors import UsageError

# Sample numbers of a batch, (B,).
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Samples and their labels.

    Attributes
    ----------
    inputs : ndarray
        Images, uint8, (N, channels, height, width), or features, float32, (N, F). May be memory-mapped.
    labels : ndarray
        int64, (N,), values 0..C-1.
    class_names : tuple of str
        C names, in the order of the labels.
    """

    inputs: NDArray[np.generic]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes, C."""
        return len(self.class_names)

    @property
    def is_images(self) -> bool:
        """Whether the inputs are images rather than features."""
        return self.inputs.ndim == 4

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class RetrievalData:
    """A training split and a test split; the test classes are usually unseen ones.

    Attributes
    ----------
    name : str
        What reports call it.
    train, test : Split
        The two splits, each with its own labels from 0.
    """

    name: str
    train: Split
    test: Split


def divide_classes(
    num_classes: int, name: str, test_fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose which classes to train on and which to test on; none is in both.

    Parameters
    ----------
    num_classes : int
        Number of classes, at least 2.
    name : str
        What an error calls the data.
    test_fraction : float
        Share of the classes for testing; both sides get at least one.
    seed : int
        Seed of the choice.

    Returns
    -------
    tuple of ndarray
        Training classes and test classes, int64, ascending.

    Raises
    ------
    UsageError
        Fewer than two classes.
    """
    if num_classes < 2:
        raise UsageError(f"{name}: a split by class needs at least 2 classes, found {num_classes}")
    num_test = min(max(round(num_classes * test_fraction), 1), num_classes - 1)
    order = np.random.default_rng(seed).permutation(num_classes)
    return np.sort(order[num_test:]), np.sort(order[:num_test])


def take_classes(whole: Split, classes: NDArray[np.int64]) -> Split:
    """Take the samples of some classes, relabelled 0, 1, … in the order given.

    Parameters
    ----------
    whole : Split
        Where they come from.
    classes : ndarray
        Labels in `whole`, int64.

    Returns
    -------
    Split
        Samples in their old order.
    """
    new_label = np.full(whole.num_classes, -1, dtype=np.int64)
    new_label[classes] = np.arange(len(classes))
    chosen = np.flatnonzero(new_label[whole.labels] >= 0)
    return Split(whole.inputs[chosen], new_label[whole.labels[chosen]], tuple(whole.class_names[c] for c in classes))
