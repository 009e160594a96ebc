"""The data set type that everything else takes, and its split by class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustdml.errors import UsageError

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
    sample_names : sequence, optional
        What an audit calls each sample: its path, or its place in the file, (N,). None where that is 0..N-1.
    weights : ndarray, optional
        How much each sample counts in training, float32, (N,), at least 0; None for 1.
    true_labels : ndarray, optional
        True labels, int64, (N,), for the report of a run; None where they are not known.
    """

    inputs: NDArray[np.generic]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    sample_names: Sequence[object] | None = None
    weights: NDArray[np.float32] | None = None
    true_labels: NDArray[np.int64] | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes, C."""
        return len(self.class_names)

    @property
    def is_images(self) -> bool:
        """Whether the inputs are images rather than features."""
        return self.inputs.ndim == 4

    @property
    def reference_labels(self) -> NDArray[np.int64]:
        """The true labels, or where they are not known those given, (N,)."""
        return self.labels if self.true_labels is None else self.true_labels

    def __len__(self) -> int:
        return len(self.labels)

    def names(self) -> list[str]:
        """Spell out the names of the samples.

        Returns
        -------
        list of str
            (N,).
        """
        return [str(name) for name in (range(len(self)) if self.sample_names is None else self.sample_names)]

    def take(self, rows: Rows, labels: NDArray[np.int64], class_names: tuple[str, ...]) -> "Split":
        """Take some samples under the labels given, which need not be their own; true labels are not taken along.

        Parameters
        ----------
        rows : ndarray
            Which, int64, (n,).
        labels : ndarray
            Of these, int64, (n,).
        class_names : tuple of str
            Of the labels.

        Returns
        -------
        Split
            In the order of the rows.
        """
        names = None if self.sample_names is None else [self.sample_names[row] for row in rows]
        weights = None if self.weights is None else self.weights[rows]
        return Split(self.inputs[rows], labels, class_names, names, weights)


@dataclass(frozen=True)
class RetrievalData:
    """A training split and a test split; the test classes are usually unseen ones.

    Attributes
    ----------
    name : str
        What reports call it.
    train, test : Split
        The two splits, each with its own labels from 0.
    noise : str
        How training labels were made wrong on purpose, as ``symmetric:0.5``; ``none`` where they were not.
    """

    name: str
    train: Split
    test: Split
    noise: str = "none"

    @property
    def noise_rate(self) -> float:
        """Rate of wrong training labels: the one that `noise` names, or by the true labels, 0 without these."""
        if self.noise != "none":
            return float(self.noise.rpartition(":")[2])
        return float((self.train.labels != self.train.reference_labels).mean()) if len(self.train) else 0.0


def divide_classes(
    num_classes: int, name: str, test_fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose which classes to train on and which to test on; none is in both.

    Examples
    --------
    >>> train, test = divide_classes(5, "these", test_fraction=0.4, seed=0)
    >>> len(train), len(test), sorted([*train.tolist(), *test.tolist()])
    (3, 2, [0, 1, 2, 3, 4])
    """
    if num_classes < 2:
        raise UsageError(f"{name}: a split by class needs at least 2 classes, found {num_classes}")
    num_test = min(max(round(num_classes * test_fraction), 1), num_classes - 1)
    order = np.random.default_rng(seed).permutation(num_classes)
    return np.sort(order[num_test:]), np.sort(order[:num_test])


def take_classes(whole: Split, classes: NDArray[np.int64]) -> Split:
    """Take the samples of some classes, relabelled 0, 1, … in the order given.

    Examples
    --------
    >>> whole = Split(np.zeros((4, 2), np.float32), np.array([0, 1, 2, 1]), ("a", "b", "c"))
    >>> some = take_classes(whole, np.array([2, 1]))
    >>> some.labels.tolist(), some.class_names
    ([1, 0, 1], ('c', 'b'))
    """
    new_label = np.full(whole.num_classes, -1, dtype=np.int64)
    new_label[classes] = np.arange(len(classes))
    chosen = np.flatnonzero(new_label[whole.labels] >= 0)
    return whole.take(chosen, new_label[whole.labels[chosen]], tuple(whole.class_names[c] for c in classes))
