"""Samples to audit, read from a disk; those that cannot be read are left out and reported."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml.data.features import read_part
from robustdml.data.folders import is_list, listed_parts
from robustdml.data.image_files import ImageFiles, Inputs, find_broken
from robustdml.data.images import check_left_out
from robustdml.data.load import expected_data
from robustdml.data.named import NAMED
from robustdml.errors import UsageError, expanded
from robustdml.plain_files import read_npz
from robustdml.progress import OnProgress, silent


@dataclass(frozen=True)
class AuditSamples:
    """Samples with the labels that were given to them."""

    source: str  # Where they come from, for `robustdml apply` to find them again
    names: list[str]  # Of each sample, its path or its place in the file, (N,)
    labels: NDArray[np.int64]  # int64, (N,), 0..C-1
    class_names: tuple[str, ...]  # C names
    # Features, float32, (N, F), or images, uint8, (N, channels, S, S); None for files that are not looked at yet.
    inputs: Inputs | None = None
    left_out: list[str] = field(default_factory=list)  # What cannot be judged, with the reason
    outside: str | None = None  # What to say where a list names files that do not lie in its folder
    parts: list[str] = field(default_factory=list)  # ``train`` or ``test`` of each sample, (N,); empty without parts

    def take(self, rows: NDArray[np.int64], inputs: Inputs | None, left_out: list[str]) -> "AuditSamples":
        """Keep some samples."""
        used, labels = np.unique(self.labels[rows], return_inverse=True)
        return replace(
            self,
            names=[self.names[row] for row in rows],
            labels=labels.astype(np.int64),
            class_names=tuple(self.class_names[label] for label in used),
            inputs=inputs,
            left_out=[*self.left_out, *left_out],
            parts=[self.parts[row] for row in rows] if self.parts else [],
        )


def read_samples(source: str, on_progress: OnProgress = silent) -> AuditSamples:
    """Find the samples; images are not looked at yet."""
    if source in NAMED:
        train = NAMED[source].load().train
        return AuditSamples(source, train.names(), train.labels, train.class_names, train.inputs)
    path = expanded(source)
    if not path.exists():
        raise UsageError(f"{source}: no such file or folder; expected {expected_data()}")
    if path.suffix.lower() == ".npz":
        return _of_features(path)
    if path.is_dir() or is_list(path):
        return _of_files(path, on_progress)
    raise UsageError(f"{source}: not a kind of file that can be audited; expected {expected_data()}")


def with_images(samples: AuditSamples, size: int, on_progress: OnProgress) -> AuditSamples:
    """Bring the files in as images; those that cannot be read are left out."""
    files = [Path(name) for name in samples.names]
    broken = find_broken(files, on_progress)
    check_left_out(len(files), (), list(broken.values()), skip_broken=True)
    rows = np.delete(np.arange(len(files)), list(broken))
    return samples.take(rows, ImageFiles([files[row] for row in rows], size), list(broken.values()))


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
