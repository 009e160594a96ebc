"""Features that another tool made of images, joined to the images by their paths."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from robustdml.arrays import Singles
from robustdml.data.dataset import Samples
from robustdml.data.features import read_part, sample_names
from robustdml.data.images import check_left_out
from robustdml.data.lists import path_column
from robustdml.errors import UsageError, counted, expanded, few, reason_of
from robustdml.plain_files import read_npz
from robustdml.tables import open_parquet, read_table

FEATURES_TEXT = (
    "features of another tool: a table with a column path and numbers in all others, or in lists in one of them "
    "(.parquet, .csv, …), or an .npz file with features and paths; images are not decoded then"
)


def with_features(samples: Samples, table: str, skip_broken: bool) -> Samples:
    """Give samples, which are images of files, the features of a table; those that are not in it are left out."""
    check_left_out(len(samples), samples.left_out, (), skip_broken)
    path = expanded(table)
    names, features = _read(path)
    row_of = {_real(path.parent / name): row for row, name in enumerate(names)}
    rows = np.array([row_of.get(_real(file), -1) for file in samples.files])
    if not (rows >= 0).any():
        raise UsageError(
            f"features {table}: none of {counted(len(samples), 'image')} of {samples.source} is in it; its paths, "
            f"relative to its folder, are {few(names[:2])}"
        )
    missing = [f"{file} (not in {path.name})" for file, row in zip(samples.files, rows, strict=True) if row < 0]
    bad = {row for row in rows.tolist() if row >= 0 and not np.isfinite(features[row]).all()}
    missing += [f"{names[row]} (its features hold NaN or infinity)" for row in sorted(bad)]
    check_left_out(len(samples), (), missing, skip_broken)
    kept = samples.subset(np.flatnonzero((rows >= 0) & ~np.isin(rows, [*bad])))
    taken = rows[(rows >= 0) & ~np.isin(rows, [*bad])]
    return replace(kept, inputs=features[taken], left_out=(*samples.left_out, *missing))


def _real(path: str | Path) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _read(path: Path) -> tuple[list[str], Singles]:
    """Names of samples and their features, (N, F)."""
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path, ("features", "paths"))
        split, _ = read_part(path, arrays)
        return [str(name) for name in sample_names(path, arrays, len(split))], np.asarray(split.inputs)
    if path.suffix.lower() == ".parquet":
        stored = open_parquet(path)
        of_path = path_column(path, stored.column_names)
        columns = [stored[name].to_pylist() for name in stored.column_names if name != of_path]
        names = list(map(str, stored[of_path].to_pylist()))
    else:
        table = read_table(path, "table of features")
        of_path = path_column(path, table.columns)
        columns = [[row[name] for _, row in table.rows] for name in table.columns if name != of_path]
        names = [row[of_path] for _, row in table.rows]
    try:
        # A column of lists has several numbers a row, any other has one.
        parts = [np.array(column, dtype=np.float32).reshape(len(names), -1) for column in columns]
    except (TypeError, ValueError) as error:
        told = f"values that are no numbers, or lists of several lengths ({reason_of(error)})"
        raise UsageError(f"features {path}: {told}; only the path may be a text") from error
    if not parts or not names:
        raise UsageError(f"features {path}: no numbers beside the column {of_path}")
    return names, np.concatenate(parts, axis=1)
