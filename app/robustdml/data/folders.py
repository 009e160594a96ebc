"""Images in class folders or lists, decoded once into a memory-mapped array in the cache folder."""

import csv
import hashlib
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robustdml.cache import NAMES, cache_folder, make_once, read_array, write_checked
from robustdml.data.dataset import RetrievalData, Split, divide_classes
from robustdml.data.images import few, image_files, is_image, write_decoded
from robustdml.errors import UsageError, expanded
from robustdml.progress import OnProgress, silent

COLUMNS = ("path", "label")
PARTS = ("train", "test")  # Folders that hold class folders each
_SUFFIXES = (".csv", ".parquet")
_DELIMITERS = ",;\t"  # semicolons where the decimal mark is a comma


@dataclass(frozen=True)
class ListedImages:
    """Images of a folder of class folders, or rows of a list that have both a path and a label."""

    files: list[Path]  # In a list relative to its folder, here absolute
    labels: NDArray[np.int64]  # int64, (N,), 0..C-1
    class_names: tuple[str, ...]  # C names, sorted
    left_out: list[str] = field(default_factory=list)  # Rows that lack one of the two, with the reason
    loose: list[str] = field(default_factory=list)  # Images of a folder that lie in no class folder, with the reason

    def take(self, classes: NDArray[np.int64]) -> "ListedImages":
        """Take the images of some classes (ascending), class by class."""
        rows = np.argsort(self.labels, kind="stable")
        rows = rows[np.isin(self.labels[rows], classes)]
        names = tuple(self.class_names[label] for label in classes)
        return ListedImages([self.files[row] for row in rows], np.searchsorted(classes, self.labels[rows]), names)

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
        raise UsageError(f"{path}: reading .parquet needs a package: pip install pyarrow") from error
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


RECIPE_VERSION = 1


def load_images(
    path: Path, *, image_size: int, test_fraction: float, split_seed: int, on_progress: OnProgress = silent
) -> RetrievalData:
    """Read a list, ``path/class/…/image``, or ``path/train/class/…`` and ``path/test/class/…`` where both exist."""
    if image_size < 1:
        raise UsageError(f"image_size={image_size}: expected at least 1")
    if has_own_split(path):
        parts = [folder_images(path / part, on_progress) for part in PARTS]
    else:
        images = folder_images(path, on_progress) if path.is_dir() else _listed(path)
        every = np.arange(len(images.class_names))
        divided = divide_classes(len(every), str(path), test_fraction, split_seed) if test_fraction else (every, every)
        parts = [images.take(classes) for classes in divided]
    train, test = (_load_split(part, image_size, on_progress) for part in parts)
    return RetrievalData(path.name, train, test)


def _listed(path: Path) -> ListedImages:
    """The images of a list, all of which must be there."""
    listed = read_list(path).whole()
    missing = [f"{file} (No such file)" for file in listed.files if not file.is_file()]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(listed.files)} images are not there: {few(missing)}. Paths are relative to "
            f"{path.parent.absolute()}"
        )
    return listed


def folder_images(folder: Path, on_progress: OnProgress = silent) -> ListedImages:
    """List the images of a folder of class folders."""
    found = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    around = {folder.resolve(), *folder.resolve().parents}
    for entry in found:
        if entry.is_symlink() and entry.resolve() in around:
            raise UsageError(f"{entry}: a link to a folder that it lies in, so that all images would be of its class")
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
    loose = [f"{file} (in no class folder)" for file in loose_images(folder)]
    return ListedImages(files, labels, tuple(classes), loose=loose)


def loose_images(folder: Path) -> list[Path]:
    """List the images that lie in a folder itself."""
    return [file for file in sorted(folder.iterdir()) if is_image(file) and (file.is_symlink() or file.is_file())]


def has_own_split(root: Path) -> bool:
    """Tell whether a folder holds a training and a test part."""
    return all((root / part).is_dir() for part in PARTS)


def _load_split(images: ListedImages, image_size: int, on_progress: OnProgress) -> Split:
    files = images.files
    path = cache_folder() / f"images-{_fingerprint(files, image_size)}.npy"

    def decode_all(output: BinaryIO) -> None:
        broken = list(write_decoded(files, image_size, output, on_progress).values())
        if broken:
            raise UsageError(f"{len(broken)} images cannot be read; repair or remove them: {few(broken)}")

    make_once(lambda: write_checked(path, decode_all), path)
    return Split(read_array(path, "r"), images.labels, images.class_names, [str(file.absolute()) for file in files])


def _fingerprint(files: list[Path], image_size: int) -> str:
    """Hash of all that the decoded array depends on: paths, sizes and times of the files, and the image size."""
    digest = hashlib.sha256(f"{RECIPE_VERSION} {image_size}".encode())
    real = cache(os.path.realpath)  # Of folders alone, and by texts: there may be millions of files.
    for path in map(os.fspath, files):
        folder, name = os.path.split(path)
        status = os.stat(path)
        depends_on = f"{real(folder)}{os.sep}{name}\0{status.st_size}\0{status.st_mtime_ns}\0"
        digest.update(depends_on.encode("utf-8", NAMES))
    return digest.hexdigest()[:16]
