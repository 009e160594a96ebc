"""The data set type that everything else takes, and its split by class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from robustdml.arrays import Ints, Labels, Rows
from robustdml.data.image_files import ImageFiles, Inputs
from robustdml.errors import UsageError

AnySplit = TypeVar("AnySplit", bound="Split")


@dataclass(frozen=True)
class Split:
    """Samples and their labels."""

    # Images, uint8, (N, channels, height, width), or features, float32 or float16, (N, F).
    inputs: Inputs
    labels: Labels  # (N,), values 0..C-1
    class_names: tuple[str, ...]  # C names, in the order of the labels; none without labels, which are all 0 then
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

    def labels_by_name(self) -> list[str]:
        """Give the class of each sample by its name, (N,)."""
        return [self.class_names[label] for label in self.labels]

    def take(self: AnySplit, rows: Rows, labels: Labels, class_names: tuple[str, ...]) -> AnySplit:
        """Take rows (n,) under the labels given, (n,), which need not be their own; without true labels."""
        names = None if self.sample_names is None else [self.sample_names[row] for row in rows]
        inputs = self.inputs.take(rows) if isinstance(self.inputs, ImageFiles) else self.inputs[rows]
        return replace(
            self, inputs=inputs, labels=labels, class_names=class_names, sample_names=names, true_labels=None
        )

    def subset(self: AnySplit, rows: Rows) -> AnySplit:
        """Take rows (n,) and the classes that they are of, numbered from 0 on."""
        used, labels = np.unique(self.labels[rows], return_inverse=True)
        return self.take(rows, labels.astype(np.int64), tuple(self.class_names[label] for label in used))


@dataclass(frozen=True)
class Samples(Split):
    """A split as its source has it; images of files have the default size, and may be broken."""

    source: str = ""  # A name, file or folder
    left_out: tuple[str, ...] = ()  # Rows without a path, a label or finite features, with the reason
    loose: tuple[str, ...] = ()  # Images in no class folder, which are left out as well, with the reason
    parts: tuple[str, ...] = ()  # ``train`` or ``test`` of each sample, (N,); empty without parts
    notes: tuple[str, ...] = ()  # How the source was read, where that is not plain, and what was passed over in it

    @property
    def files(self) -> Sequence[Path]:
        """Files of the images, (N,); none where the inputs are arrays."""
        return self.inputs.files if isinstance(self.inputs, ImageFiles) else ()

    def in_brackets(self) -> str:
        """The notes that follow a name in an error: files passed over may explain why something is missing."""
        return f" ({'; '.join(self.notes)})" if self.notes else ""

    def take(self, rows: Rows, labels: Labels, class_names: tuple[str, ...]) -> "Samples":
        """Take rows as any split does, with their parts."""
        parts = tuple(self.parts[row] for row in rows) if self.parts else ()
        return replace(super().take(rows, labels, class_names), parts=parts)


@dataclass(frozen=True)
class RetrievalData:
    """A training split and a test split, each with its own labels from 0; the test classes are usually unseen."""

    name: str  # In reports
    train: Split
    test: Split
    noise: str = "none"  # How training labels were made wrong on purpose, as ``symmetric:0.5``
    left_out: tuple[str, ...] = ()  # Files and rows that are in neither split, with the reason
    notes: tuple[str, ...] = ()  # How the source was read, what was passed over in it, and copies between the splits
    content: str = ""  # What tells a file of features from another of its shape

    @property
    def noise_rate(self) -> float:
        """Rate of wrong training labels: the one that `noise` names, or by the true labels, 0 without these."""
        if self.noise != "none":
            return float(self.noise.rpartition(":")[2])
        return float((self.train.labels != self.train.reference_labels).mean()) if len(self.train) else 0.0


def numbered(names: Sequence[str]) -> tuple[Labels, tuple[str, ...]]:
    """Number the classes of samples, (N,), by their names in order."""
    classes, labels = np.unique(names, return_inverse=True)
    return labels.astype(np.int64), tuple(map(str, classes))


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


def take_classes(whole: Split, classes: Ints) -> Split:
    """Take the samples of some classes, relabelled 0, 1, … in the order given."""
    new_label = np.full(whole.num_classes, -1, dtype=np.int64)
    new_label[classes] = np.arange(len(classes))
    chosen = np.flatnonzero(new_label[whole.labels] >= 0)
    return whole.take(chosen, new_label[whole.labels[chosen]], tuple(whole.class_names[c] for c in classes))
