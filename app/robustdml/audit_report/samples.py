"""Samples to audit, read from a disk; those that cannot be read are left out and reported."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from robustdml.data.dataset import Samples, numbered
from robustdml.data.features import read_part
from robustdml.data.folders import listed_parts
from robustdml.data.image_files import ImageFiles
from robustdml.data.lists import ANY_COLUMNS, Columns, is_list
from robustdml.data.load import existing, expected_data
from robustdml.data.named import NAMED
from robustdml.errors import UsageError
from robustdml.plain_files import read_npz
from robustdml.progress import OnProgress, silent


def read_samples(source: str, columns: Columns = ANY_COLUMNS, on_progress: OnProgress = silent) -> Samples:
    """Find the samples; images are not looked at yet, and the source is one for `robustdml apply` to find again."""
    if source in NAMED:
        train = NAMED[source].load().train
        return Samples(train.inputs, train.labels, train.class_names, train.sample_names, source=source)
    path = existing(source, expected_data())
    if path.suffix.lower() == ".npz":
        return _of_features(path)
    if path.is_dir() or is_list(path):
        return _of_files(path, columns, on_progress)
    raise UsageError(f"{source}: not a kind of file that can be audited; expected {expected_data()}")


def _of_features(path: Path) -> Samples:
    split, finite = read_part(path, read_npz(path, ("features", "labels"), ("class_names", "paths")))
    source = str(path.absolute())
    whole = Samples(split.inputs, split.labels, split.class_names, split.sample_names, source=source)
    if finite.all():
        return whole
    if not finite.any():
        raise UsageError(f"{path}: every row of features holds NaN or infinite values")
    names = split.names()
    bad = tuple(f"{names[row]} (its features hold NaN or infinite values)" for row in np.flatnonzero(~finite))
    return replace(whole.subset(np.flatnonzero(finite)), left_out=bad)


def _of_files(path: Path, columns: Columns, on_progress: OnProgress) -> Samples:
    """Join class folders of the same name in both parts into one class."""
    listed = listed_parts(path, columns, on_progress)
    labels = [label for images in listed.values() for label in images.labels_by_name()]
    files = [file.absolute() for images in listed.values() for file in images.files]
    parts = tuple(part for part, images in listed.items() for _ in images.files)
    return Samples(
        ImageFiles(files),
        *numbered(labels),
        list(map(str, files)),
        source=str(path.absolute()),
        left_out=tuple(one for images in listed.values() for one in (*images.loose, *images.left_out)),
        parts=parts if any(parts) else (),
        notes=tuple(one for images in listed.values() for one in images.notes),
    )


def outside_line(samples: Samples) -> str | None:
    """Say which files lie outside of the folder of their list; that may come from a stranger, and name any file."""
    source = Path(samples.source)
    folder = os.path.normpath(source if source.is_dir() else source.parent)
    outside = [file for file in samples.files if not Path(os.path.normpath(file)).is_relative_to(folder)]
    if not outside:
        return None
    return f"{len(outside):,} of {len(samples):,} images lie outside of {folder}, the first is {outside[0]}"
