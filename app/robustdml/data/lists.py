"""Lists of images: a .csv or .parquet file with the columns path and label, as `robustdml apply` writes them, too."""

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustdml.cache import NAMES
from robustdml.data.images import few
from robustdml.errors import UsageError, expanded

COLUMNS = ("path", "label")
_SUFFIXES = (".csv", ".parquet")
_DELIMITERS = ",;\t"  # semicolons where the decimal mark is a comma


@dataclass(frozen=True)
class ListedImages:
    """Rows of a list that have both a path and a label."""

    files: list[Path]  # Absolute; in the list they are relative to its folder
    labels: NDArray[np.int64]  # int64, (N,), 0..C-1
    class_names: tuple[str, ...]  # C names, sorted
    left_out: list[str] = field(default_factory=list)  # Rows that lack one of the two, with the reason

    def whole(self) -> "ListedImages":
        """Refuse a list of which something is left out."""
        if self.left_out:
            raise UsageError(f"{len(self.left_out)} rows are not whole; fill or remove them: {few(self.left_out)}")
        return self


def is_list(path: Path) -> bool:
    """Tell whether a file is a list, by its name."""
    return path.suffix.lower() in _SUFFIXES


def read_list(path: Path) -> ListedImages:
    """Read a list; whether the images are there is not looked at."""
    rows = _parquet_rows(path) if path.suffix.lower() == ".parquet" else _csv_rows(path)
    if not rows:
        raise UsageError(f"{path}: an empty list; expected a path and a label a line")
    good = [(file, label) for file, label in rows if file and label]
    left_out = [
        f"row {number} of {path.name} (no {'label' if file else 'path'})"
        for number, (file, label) in enumerate(rows, 1)
        if not (file and label)
    ]
    if not good:
        raise UsageError(f"{path}: no line has both a path and a label")
    files = [(path.parent / expanded(file)).absolute() for file, _ in good]
    names, labels = np.unique([label for _, label in good], return_inverse=True)
    return ListedImages(files, labels.astype(np.int64), tuple(map(str, names)), left_out)


def _csv_rows(path: Path) -> list[tuple[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", errors=NAMES, newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=max(_DELIMITERS, key=first.count))
            _check_columns(path, reader.fieldnames or ())
            return [((row["path"] or "").strip(), (row["label"] or "").strip()) for row in reader]
    except csv.Error as error:
        raise UsageError(f"{path}: not a readable .csv file ({error})") from error


def _parquet_rows(path: Path) -> list[tuple[str, str]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(f"{path}: reading .parquet needs a package: pip install 'robustdml[lists]'") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a readable .parquet file ({error})") from error
    _check_columns(path, table.column_names)
    files, labels = (
        ["" if value is None else str(value) for value in table.column(name).to_pylist()] for name in COLUMNS
    )
    return list(zip(files, labels, strict=True))


def _check_columns(path: Path, found: Any) -> None:
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise UsageError(
            f"{path}: no column {missing[0]!r}; found {', '.join(found) or 'nothing'}. Call that of the images path, "
            "and that of their classes label"
        )
