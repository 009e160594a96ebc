"""The data set type that everything else takes, and its split by class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustdml.arrays import Ints, Labels, Rows
from robustdml.data.image_files import ImageFiles, Inputs
from robustdml.errors import UsageError


@dataclass(frozen=True)
class Split:
    """Samples and their labels."""

    # Images, uint8, (N, channels, height, width), or features, float32 or float16, (N, F).
    inputs: Inputs
    labels: Labels  # (N,), values 0..C-1
    class_names: tuple[str, ...]  # C names, in the order of the labels
    sample_names: Sequence[object] | None = None  # Path of each sample or its place in the file, (N,); None: 0..N-1
    true_labels: Ints | None = None  # (N,), for the report of a run; None where they are not known

    @property
    def num_classes(self) -> int:
        """Number of classes, C."""
        return len(self.class_names)

    @property
    def is_images(self) -> bool:
        """Whether the inputs are images rather than features."""
        return self.inputs.ndim == 4

    @property
    def reference_labels(self) -> Ints:
        """The true labels, or where they are not known those given, (N,)."""
        return self.labels if self.true_labels is None else self.true_labels

    def __len__(self) -> int:
        return len(self.labels)

    def names(self) -> list[str]:
        """Give the names of the samples as texts, (N,)."""
        return [str(name) for name in (range(len(self)) if self.sample_names is None else self.sample_names)]

    def take(self, rows: Rows, labels: Labels, class_names: tuple[str, ...]) -> "Split":
        """Take rows (n,) under the labels given, (n,), which need not be their own; without true labels."""
        names = None if self.sample_names is None else [self.sample_names[row] for row in rows]
        inputs = self.inputs.take(rows) if isinstance(self.inputs, ImageFiles) else self.inputs[rows]
        return Split(inputs, labels, class_names, names)


@dataclass(frozen=True)
class RetrievalData:
    """A training split and a test split, each with its own labels from 0; the test classes are usually unseen."""

    name: str  # In reports
    train: Split
    test: Split
    noise: str = "none"  # How training labels were made wrong on purpose, as ``symmetric:0.5``
    left_out: tuple[str, ...] = ()  # Files and rows that are in neither split, with the reason
    content: str = ""  # What tells a file of features from another of its shape

    @property
    def noise_rate(self) -> float:
        """Rate of wrong training labels: the one that `noise` names, or by the true labels, 0 without these."""
        if self.noise != "none":
            return float(self.noise.rpartition(":")[2])
        return float((self.train.labels != self.train.reference_labels).mean()) if len(self.train) else 0.0


def divide_classes(num_classes: int, name: str, test_fraction: float, seed: int) -> tuple[Ints, Ints]:
    """Choose which classes to train on and which to test on; none is in both."""
    if num_classes < 2:
        raise UsageError(f"{name}: a split by class needs at least 2 classes, found {num_classes}")
    num_test = min(max(round(num_classes * test_fraction), 1), num_classes - 1)
    order = np.random.default_rng(seed).permutation(num_classes)
    return np.sort(order[num_test:]), np.sort(order[:num_test])


def members_of_classes(labels: Labels, num_classes: int) -> list[Rows]:
    """Sample numbers of each class, ascending."""
    sizes = np.bincount(labels, minlength=num_classes)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])


def renumbered(labels: Labels, class_names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Labels (n,) as numbers of the classes that they are of, from 0 on, and the names of these."""
    used, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), tuple(class_names[label] for label in used)


def take_classes(whole: Split, classes: Ints) -> Split:
    """Take the samples of some classes, relabelled 0, 1, … in the order given."""
    new_label = np.full(whole.num_classes, -1, dtype=np.int64)
    new_label[classes] = np.arange(len(classes))
    chosen = np.flatnonzero(new_label[whole.labels] >= 0)
    return whole.take(chosen, new_label[whole.labels[chosen]], tuple(whole.class_names[c] for c in classes))
