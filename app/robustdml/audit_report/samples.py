"""Samples to audit, read from a disk; those that cannot be read are left out and reported."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from robustdml.arrays import Ints, Labels
from robustdml.data.dataset import renumbered
from robustdml.data.features import read_part
from robustdml.data.folders import is_list, listed_parts
from robustdml.data.image_files import ImageFiles, Inputs, readable_rows
from robustdml.data.load import existing, expected_data
from robustdml.data.named import NAMED
from robustdml.errors import UsageError
from robustdml.plain_files import read_npz
from robustdml.progress import OnProgress, silent


@dataclass(frozen=True)
class AuditSamples:
    """Samples with the labels that were given to them."""

    source: str  # Where they come from, for `robustdml apply` to find them again
    names: list[str]  # Of each sample, its path or its place in the file, (N,)
    labels: Labels  # int64, (N,), 0..C-1
    class_names: tuple[str, ...]  # C names
    # Features, float32, (N, F), or images, uint8, (N, channels, S, S); None for files that are not looked at yet.
    inputs: Inputs | None = None
    left_out: list[str] = field(default_factory=list)  # What cannot be judged, with the reason
    outside: str | None = None  # What to say where a list names files that do not lie in its folder
    parts: list[str] = field(default_factory=list)  # ``train`` or ``test`` of each sample, (N,); empty without parts

    def take(self, rows: Ints, inputs: Inputs | None, left_out: list[str]) -> "AuditSamples":
        """Keep some samples."""
        labels, class_names = renumbered(self.labels[rows], self.class_names)
        return replace(
            self,
            names=[self.names[row] for row in rows],
            labels=labels,
            class_names=class_names,
            inputs=inputs,
            left_out=[*self.left_out, *left_out],
            parts=[self.parts[row] for row in rows] if self.parts else [],
        )


def read_samples(source: str, on_progress: OnProgress = silent) -> AuditSamples:
    """Find the samples; images are not looked at yet."""
    if source in NAMED:
        train = NAMED[source].load().train
        return AuditSamples(source, train.names(), train.labels, train.class_names, train.inputs)
    path = existing(source, expected_data())
    if path.suffix.lower() == ".npz":
        return _of_features(path)
    if path.is_dir() or is_list(path):
        return _of_files(path, on_progress)
    raise UsageError(f"{source}: not a kind of file that can be audited; expected {expected_data()}")


def with_images(samples: AuditSamples, size: int, on_progress: OnProgress) -> AuditSamples:
    """Bring the files in as images; those that cannot be read are left out."""
    files = [Path(name) for name in samples.names]
    rows, broken = readable_rows(files, (), True, on_progress)
    return samples.take(rows, ImageFiles([files[row] for row in rows], size), broken)


def _of_features(path: Path) -> AuditSamples:
    split, finite = read_part(path, read_npz(path, ("features", "labels"), ("class_names", "paths")))
    names = split.names()
    whole = AuditSamples(str(path.absolute()), names, split.labels, split.class_names, split.inputs)
    if finite.all():
        return whole
    if not finite.any():
        raise UsageError(f"{path}: every row of features holds NaN or infinite values")
    bad = [f"{names[row]} (its features hold NaN or infinite values)" for row in np.flatnonzero(~finite)]
    rows = np.flatnonzero(finite)
    return whole.take(rows, split.inputs[rows], bad)


def _of_files(path: Path, on_progress: OnProgress) -> AuditSamples:
    """A class folder of the same name in both parts is one class."""
    listed = listed_parts(path, on_progress)
    labels = [images.class_names[label] for images in listed.values() for label in images.labels]
    names, numbers = np.unique(labels, return_inverse=True)
    files = [str(file.absolute()) for images in listed.values() for file in images.files]
    parts = [part for part, images in listed.items() for _ in images.files]
    left_out = [one for images in listed.values() for one in (*images.loose, *images.left_out)]
    # A list may come from a stranger, and name any file of this machine.
    folder = os.path.normpath(path.absolute() if path.is_dir() else path.parent.absolute())
    outside = [file for file in files if not Path(os.path.normpath(file)).is_relative_to(folder)]
    count = f"{len(outside):,} of {len(files):,}"
    return AuditSamples(
        str(path.absolute()),
        files,
        numbers.astype(np.int64),
        tuple(map(str, names)),
        left_out=left_out,
        outside=f"{count} images lie outside of {folder}, the first is {outside[0]}" if outside else None,
        parts=parts if any(parts) else [],
    )
