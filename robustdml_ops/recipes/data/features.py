"""Frozen features in an ``.npz`` file, as embeddings of some large model are usually stored."""

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml_ops.recipes.data.dataset import RetrievalData, Split, divide_classes, take_classes
from robustdml_ops.recipes.errors import UsageError


def load_features(path: Path, *, test_fraction: float = 0.5, split_seed: int = 0) -> RetrievalData:
    """Read ``features`` (N, F) and ``labels`` (N,), and where present ``test_features`` and ``test_labels``.

    Parameters
    ----------
    path : Path
        The ``.npz`` file. Labels may be any integers; they are renumbered from 0.
    test_fraction, split_seed
        Split by class, used where the file has no test part.

    Returns
    -------
    RetrievalData
        Features in float32.

    Raises
    ------
    UsageError
        Not such a file, missing arrays, wrong shapes or dtypes, NaN or infinite features, no samples.
    """
    try:
        # Opened here, because numpy leaves a file that is no archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{path}: not a readable .npz file of plain arrays ({error})") from error
    train = _split(path, arrays, "")
    if ("test_features" in arrays) != ("test_labels" in arrays):
        raise UsageError(f"{path}: has one of test_features and test_labels; give both or neither")
    if "test_features" not in arrays:
        parts = divide_classes(train.num_classes, str(path), test_fraction, split_seed)
        return RetrievalData(path.stem, *(take_classes(train, part) for part in parts))
    test = _split(path, arrays, "test_")
    if test.inputs.shape[1] != train.inputs.shape[1]:
        raise UsageError(
            f"{path}: features have {train.inputs.shape[1]} columns and test_features {test.inputs.shape[1]}; "
            "they must come from one model"
        )
    return RetrievalData(path.stem, train, test)


def _split(path: Path, arrays: dict[str, NDArray[np.generic]], prefix: str) -> Split:
    for key in (f"{prefix}features", f"{prefix}labels"):
        if key not in arrays:
            raise UsageError(f"{path}: no array {key!r}; found {', '.join(sorted(arrays)) or 'nothing'}")
    features, labels = arrays[f"{prefix}features"], arrays[f"{prefix}labels"]
    if features.ndim != 2 or features.dtype.kind not in "fiu" or 0 in features.shape:
        raise UsageError(
            f"{path}: {prefix}features is {features.dtype} {features.shape}; expected numbers of shape (N, F)"
        )
    if labels.shape != features.shape[:1] or labels.dtype.kind not in "iu":
        raise UsageError(
            f"{path}: {prefix}labels is {labels.dtype} {labels.shape}; expected integers of shape ({len(features)},)"
        )
    converted = features.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(converted).all(axis=1))
    if len(bad):
        raise UsageError(
            f"{path}: {len(bad)} rows of {prefix}features hold NaN or infinite values, the first is {bad[0]}"
        )
    names, renumbered = np.unique(labels, return_inverse=True)
    return Split(converted, renumbered.astype(np.int64), tuple(str(name) for name in names))
