"""Images in class folders or lists."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robustdml.data.dataset import RetrievalData, Samples, divide_classes
from robustdml.data.image_files import ImageFiles, find_broken
from robustdml.data.images import check_left_out, image_files, is_image
from robustdml.errors import UsageError, expanded
from robustdml.plain_files import read_csv
from robustdml.progress import OnProgress, silent

COLUMNS, PART = ("path", "label"), "part"
PARTS = ("train", "test")  # Folders that hold class folders each
_LIKE_PARTS = {*PARTS, "val", "valid", "validation", "dev"}
_SUFFIXES = (".csv", ".parquet")
_DELIMITERS = ",;\t"  # semicolons where the decimal mark is a comma


def is_list(path: Path) -> bool:
    """Tell whether a file is a list, by its name."""
    return path.suffix.lower() in _SUFFIXES


def read_list(path: Path) -> Samples:
    """Read the rows of a list that have both a path and a label; whether the images are there is not looked at."""
    rows = _parquet_rows(path) if path.suffix.lower() == ".parquet" else _csv_rows(path)
    if not rows:
        raise UsageError(f"{path}: an empty list; expected a path and a label a line")
    good: list[tuple[str, ...]] = []
    left_out: list[str] = []
    row_of: dict[Path, int] = {}
    for number, row in enumerate(rows, 1):
        # What is not blank is kept as it is: files and class folders may have names with blanks around them.
        lacks = [name for name, value in zip(COLUMNS, row, strict=False) if not value.strip()]
        if lacks:
            left_out.append(f"row {number} of {path.name} (no {lacks[0]})")
            continue
        file = (path.parent / expanded(row[0])).absolute()
        if row_of.setdefault(file, number) != number:
            raise UsageError(f"{path}: rows {row_of[file]} and {number} are of the same file, {file}; keep one")
        good.append(row)
    if not good:
        raise UsageError(f"{path}: no line has both a path and a label")
    names, labels = np.unique([label for _, label, _ in good], return_inverse=True)
    # A column of that name may mean anything else.
    parts = tuple(part.strip() for _, _, part in good)
    parts = parts if {*PARTS} <= {*parts} else ()
    other = next((part for part in parts if part not in PARTS), None)
    if other is not None:
        raise UsageError(f"{path}: part is {other!r} beside train and test; take such rows out, or rename the column")
    return Samples(
        ImageFiles(list(row_of)),
        labels.astype(np.int64),
        tuple(map(str, names)),
        list(map(str, row_of)),
        source=str(path),
        left_out=tuple(left_out),
        parts=parts,
    )


def _csv_rows(path: Path) -> list[tuple[str, ...]]:
    columns, rows = read_csv(path, ".csv file", _DELIMITERS)
    _check_columns(path, columns)
    return [tuple(row.get(name) or "" for name in (*COLUMNS, PART)) for _, row in rows]


def _parquet_rows(path: Path) -> list[tuple[str, ...]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(f"{path}: reading .parquet needs a package: pip install pyarrow") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a readable .parquet file ({error})") from error
    _check_columns(path, table.column_names)
    rows = table.select([name for name in (*COLUMNS, PART) if name in table.column_names]).to_pylist()
    return [tuple("" if row.get(name) is None else str(row[name]) for name in (*COLUMNS, PART)) for row in rows]


def _check_columns(path: Path, found: Any) -> None:
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise UsageError(
            f"{path}: no column {missing[0]!r}; found {', '.join(found) or 'nothing'}. Call that of the images path, "
            "and that of their classes label"
        )
    twice = next((name for name in (*COLUMNS, PART) if list(found).count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}: {list(found).count(twice)} columns are called {twice}; keep one")


def load_images(
    path: Path, image_size: int, test_fraction: float, split_seed: int, skip_broken: bool, on_progress: OnProgress
) -> RetrievalData:
    """Read a list, ``path/class/…/image``, or ``path/train/class/…`` and ``path/test/class/…`` where both exist."""
    if image_size < 1:
        raise UsageError(f"image_size={image_size}: expected at least 1")
    listed = listed_parts(path, on_progress).values()
    parts = [with_images(part, image_size, skip_broken, on_progress) for part in listed]
    left_out = tuple(one for part in parts for one in (*part.loose, *part.left_out))
    if len(parts) == 1:
        whole, every = parts[0], np.arange(len(parts[0].class_names))
        divided = divide_classes(len(every), str(path), test_fraction, split_seed) if test_fraction else (every, every)
        in_order = np.argsort(whole.labels, kind="stable")
        parts = [whole.subset(in_order[np.isin(whole.labels[in_order], classes)]) for classes in divided]
    train, test = parts
    return RetrievalData(path.name, train, test, left_out=left_out)


def with_images(samples: Samples, size: int, skip_broken: bool, on_progress: OnProgress) -> Samples:
    """Bring images to a size; those that cannot be read are left out, or refused where none is to be skipped."""
    check_left_out(len(samples), samples.left_out, (), skip_broken)
    broken = find_broken(samples.files, on_progress)
    check_left_out(len(samples), samples.left_out, list(broken.values()), skip_broken)
    kept = samples.subset(np.delete(np.arange(len(samples)), list(broken)))
    return replace(kept, inputs=ImageFiles(kept.files, size), left_out=(*samples.left_out, *broken.values()))


def listed_parts(path: Path, on_progress: OnProgress = silent) -> dict[str, Samples]:
    """Read a list, a folder of class folders, or both `PARTS` where a folder holds them or a list names them."""
    if all((path / part).is_dir() for part in PARTS):
        parts = {part: folder_images(path / part, on_progress) for part in PARTS}
        beside = {one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")}
        beside -= {path / part for part in PARTS}
        loose = (*parts["train"].loose, *(f"{one} (beside train and test)" for one in sorted(beside)))
        return {**parts, "train": replace(parts["train"], loose=loose)}
    if path.is_dir():
        return {"": folder_images(path, on_progress)}
    listed = read_list(path)
    named = {part: np.flatnonzero([one == part for one in listed.parts]) for part in PARTS if listed.parts}
    parts = {part: listed.subset(rows) for part, rows in named.items()} or {"": listed}
    return {part: replace(one, left_out=listed.left_out if part != "test" else ()) for part, one in parts.items()}


def folder_images(folder: Path, on_progress: OnProgress = silent) -> Samples:
    """List the images of a folder of class folders."""
    found = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    around = {folder.resolve(), *folder.resolve().parents}
    for entry in found:
        if entry.is_symlink() and entry.resolve() in around:
            raise UsageError(f"{entry}: a link to a folder that it lies in, so that all images would be of its class")
    if found and {entry.name.lower() for entry in found} <= _LIKE_PARTS:
        raise UsageError(
            f"{folder}: the folders in it look like parts, not classes: {', '.join(entry.name for entry in found)}; "
            "call them train and test, or give one of them"
        )
    classes = {}
    for done, entry in enumerate(found):
        on_progress("listing images", done, len(found))
        classes[entry.name] = image_files(entry)
    classes = {name: files for name, files in classes.items() if files}
    if not classes:
        count = len(loose_images(folder))
        said = f"{count:,} images, and no class folder" if count else "no images"
        raise UsageError(f"{folder}: {said}; expected files such as {folder}/some-class/image.jpg")
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(files) for files in classes.values()])
    files = [file for files in classes.values() for file in files]
    loose = tuple(f"{file} (in no class folder)" for file in loose_images(folder))
    names = [str(file.absolute()) for file in files]
    return Samples(ImageFiles(files), labels, tuple(classes), names, source=str(folder), loose=loose)


def loose_images(folder: Path) -> list[Path]:
    """List the images that lie in a folder itself."""
    return [file for file in sorted(folder.iterdir()) if is_image(file) and (file.is_symlink() or file.is_file())]
