"""Frozen features in an ``.npz`` file, as embeddings of some large model are usually stored."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustdml.arrays import Array, Mask
from robustdml.data.dataset import RetrievalData, Split, divide_classes, take_classes
from robustdml.errors import UsageError, counted
from robustdml.plain_files import read_npz

# What the names of a part's arrays begin with.
TRAIN, TEST = "", "test_"


def load_features(path: Path, *, test_fraction: float = 0.5, split_seed: int = 0) -> RetrievalData:
    """Read ``features`` (N, F) and ``labels`` (N,), and where present ``test_features`` and ``test_labels``."""
    splits = load_splits(path)
    train = splits[TRAIN]
    some = train.inputs[:: max(len(train) // 4096, 1)]
    content = hashlib.blake2b(np.ascontiguousarray(some).tobytes() + train.labels.tobytes(), digest_size=8).hexdigest()
    test = splits.get(TEST, train)
    if TEST not in splits and test_fraction:
        parts = divide_classes(train.num_classes, str(path), test_fraction, split_seed)
        train, test = (take_classes(train, part) for part in parts)
    return RetrievalData(path.stem, train, test, content=content)


def load_splits(path: Path, need_labels: bool = True) -> dict[str, Split]:
    """Read what `load_features` reads, in the parts that the file has; without labels no class has a name."""
    needed = ("features", "labels")[: 1 + need_labels]
    arrays = read_npz(path, needed, ("labels", "test_features", "test_labels", "class_names", "paths"))
    splits = {TRAIN: _finite_part(path, arrays, TRAIN)}
    if need_labels and ("test_features" in arrays) != ("test_labels" in arrays):
        raise UsageError(f"{path}: has one of test_features and test_labels; give both or neither")
    if "test_features" not in arrays:
        return splits
    splits[TEST] = _finite_part(path, arrays, TEST)
    columns, test_columns = (splits[part].inputs.shape[1] for part in (TRAIN, TEST))
    if test_columns != columns:
        raise UsageError(f"{path}: features have {columns} columns, and test_features {test_columns}")
    return splits


def _finite_part(path: Path, arrays: dict[str, NDArray[Any]], prefix: str) -> Split:
    split, finite = read_part(path, arrays, prefix)
    bad = np.flatnonzero(~finite)
    if len(bad):
        raise UsageError(
            f"{path}: {counted(len(bad), 'row')} of {prefix}features with NaN or infinity; the first is {bad[0]}"
        )
    return split


def read_part(path: Path, arrays: dict[str, NDArray[Any]], prefix: str = TRAIN) -> tuple[Split, Mask]:
    """Check and convert a part of a file, and tell which rows of its features are finite then, (N,)."""
    features, labels = arrays[f"{prefix}features"], arrays.get(f"{prefix}labels")
    if features.ndim != 2 or features.dtype.kind not in "fiu" or 0 in features.shape:
        raise UsageError(f"{path}: {prefix}features is {features.dtype} {features.shape}; expected numbers (N, F)")
    with np.errstate(over="ignore"):
        converted = features.astype(np.float32, order="C", copy=False)
    finite = np.asarray(np.isfinite(converted).all(axis=1))
    if labels is None:
        return Split(converted, np.zeros(len(features), np.int64), ()), finite
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iuU":
        raise UsageError(
            f"{path}: {prefix}labels is {labels.dtype} {labels.shape}; expected integers or texts of shape "
            f"({len(features)},)"
        )
    values, renumbered = np.unique(labels, return_inverse=True)
    names = _named_labels(path, None if labels.dtype.kind == "U" else arrays.get("class_names"), values)
    places = None if prefix == TEST else sample_names(path, arrays, len(features))
    return Split(converted, renumbered.astype(np.int64), names, places), finite


def sample_names(path: Path, arrays: dict[str, Array], count: int) -> Sequence[object]:
    """Names of samples."""
    if "paths" not in arrays:
        return range(count)
    paths = arrays["paths"]
    if paths.shape != (count,) or paths.dtype.kind not in "iuU":
        raise UsageError(f"{path}: paths is {paths.dtype} {paths.shape}; expected texts of shape ({count},)")
    return list(paths.tolist())


def _named_labels(path: Path, names: Array | None, values: Array) -> tuple[str, ...]:
    """Names of classes."""
    if names is None:
        return tuple(str(value) for value in values)
    low, high = int(values.min()), int(values.max())
    if names.ndim != 1 or names.dtype.kind != "U" or low < 0 or high >= len(names):
        raise UsageError(
            f"{path}: class_names is {names.dtype} {names.shape}, and labels go from {low} to {high}; expected texts, "
            "one for each label from 0 on"
        )
    used = tuple(str(names[value]) for value in values.astype(np.int64))
    name, count = Counter(used).most_common(1)[0]
    if count > 1:  # An audit's findings, and a gallery, know classes by their names.
        raise UsageError(f"{path}: class_names calls {count} labels {name!r}; give each a name of its own")
    return used
