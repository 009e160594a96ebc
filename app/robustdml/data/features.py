"""Frozen features in an ``.npz`` file, as embeddings of some large model are usually stored."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml.data.dataset import RetrievalData, Split, divide_classes, take_classes
from robustdml.errors import UsageError
from robustdml.plain_files import read_npz

# What the names of a part's arrays begin with.
TRAIN, TEST = "", "test_"


def load_features(path: Path, *, test_fraction: float = 0.5, split_seed: int = 0) -> RetrievalData:
    """Read ``features`` (N, F) and ``labels`` (N,), and where present ``test_features`` and ``test_labels``."""
    splits = load_splits(path)
    train = splits[TRAIN]
    if TEST not in splits:
        if not test_fraction:
            return RetrievalData(path.stem, train, train)
        parts = divide_classes(train.num_classes, str(path), test_fraction, split_seed)
        first, second = (take_classes(train, part) for part in parts)
        return RetrievalData(path.stem, first, second)
    return RetrievalData(path.stem, train, splits[TEST])


def load_splits(path: Path, need_labels: bool = True) -> dict[str, Split]:
    """Read what `load_features` reads, in the parts that the file has; without labels no class has a name."""
    needed = ("features", "labels")[: 1 + need_labels]
    arrays = read_npz(path, needed, ("labels", "test_features", "test_labels", "class_names", "paths"))
    splits = {TRAIN: _split(path, arrays, TRAIN, need_labels)}
    if need_labels and ("test_features" in arrays) != ("test_labels" in arrays):
        raise UsageError(f"{path}: has one of test_features and test_labels; give both or neither")
    if "test_features" not in arrays:
        return splits
    splits[TEST] = _split(path, arrays, TEST, need_labels)
    columns, test_columns = (splits[part].inputs.shape[1] for part in (TRAIN, TEST))
    if test_columns != columns:
        raise UsageError(
            f"{path}: features have {columns} columns and test_features {test_columns}; they must come from one model"
        )
    return splits


def _split(path: Path, arrays: dict[str, NDArray[np.generic]], prefix: str, need_labels: bool) -> Split:
    features = checked_features(path, arrays, prefix)
    labels = arrays.get(f"{prefix}labels")
    if labels is None:
        return Split(_finite(path, features, prefix), np.zeros(len(features), np.int64), ())
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iu":
        raise UsageError(
            f"{path}: {prefix}labels is {labels.dtype} {labels.shape}; expected integers of shape ({len(features)},)"
        )
    values, renumbered = np.unique(labels, return_inverse=True)
    names = named_labels(path, arrays.get("class_names"), values)
    places = None if prefix == TEST else sample_names(path, arrays, len(features))
    return Split(_finite(path, features, prefix), renumbered.astype(np.int64), names, places)


def checked_features(path: Path, arrays: dict[str, NDArray[np.generic]], prefix: str = "") -> NDArray[np.generic]:
    """Features of a part of a file, (N, F)."""
    features = arrays[f"{prefix}features"]
    if features.ndim != 2 or features.dtype.kind not in "fiu" or 0 in features.shape:
        raise UsageError(
            f"{path}: {prefix}features is {features.dtype} {features.shape}; expected numbers of shape (N, F)"
        )
    return features


def as_float32(features: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Convert features, and tell which rows are finite then, (N,)."""
    with np.errstate(over="ignore"):
        converted = features.astype(np.float32, order="C", copy=False)
    return converted, np.asarray(np.isfinite(converted).all(axis=1))


def _finite(path: Path, features: NDArray[np.generic], prefix: str) -> NDArray[np.float32]:
    converted, finite = as_float32(features)
    bad = np.flatnonzero(~finite)
    if len(bad):
        raise UsageError(
            f"{path}: {len(bad)} rows of {prefix}features hold NaN or infinite values, the first is {bad[0]}"
        )
    return converted


def sample_names(path: Path, arrays: dict[str, NDArray[np.generic]], count: int) -> Sequence[object]:
    """Names of samples."""
    if "paths" not in arrays:
        return range(count)
    paths = arrays["paths"]
    if paths.shape != (count,) or paths.dtype.kind not in "iuU":
        raise UsageError(f"{path}: paths is {paths.dtype} {paths.shape}; expected texts of shape ({count},)")
    return list(paths.tolist())


def named_labels(path: Path, names: NDArray[np.generic] | None, values: NDArray[np.generic]) -> tuple[str, ...]:
    """Names of classes."""
    if names is None:
        return tuple(str(value) for value in values)
    low, high = int(values.min()), int(values.max())
    if names.ndim != 1 or names.dtype.kind != "U" or low < 0 or high >= len(names):
        raise UsageError(
            f"{path}: class_names is {names.dtype} {names.shape}, and labels go from {low} to {high}; expected texts, "
            "one for each label from 0 on"
        )
    return tuple(str(names[value]) for value in values.astype(np.int64))
