"""Images in class folders or lists, decoded once into a memory-mapped array in the cache folder."""

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from robustdml.cache import NAMES, cache_folder, make_once, read_array, write_whole
from robustdml.data.dataset import RetrievalData, Split, divide_classes
from robustdml.data.images import few, image_files, write_decoded
from robustdml.data.lists import read_list
from robustdml.errors import UsageError
from robustdml.progress import OnProgress, silent

RECIPE_VERSION = 1


def load_images(
    path: Path, *, image_size: int, test_fraction: float, split_seed: int, on_progress: OnProgress = silent
) -> RetrievalData:
    """Read a list, ``path/class/…/image``, or ``path/train/class/…`` and ``path/test/class/…`` where both exist."""
    if image_size < 1:
        raise UsageError(f"image_size={image_size}: expected at least 1")
    if has_own_split(path):
        parts = [files_by_class(path / part, on_progress) for part in ("train", "test")]
    else:
        classes = files_by_class(path, on_progress) if path.is_dir() else _listed(path)
        names = list(classes)
        divided = divide_classes(len(names), str(path), test_fraction, split_seed)
        parts = [{names[label]: classes[names[label]] for label in part} for part in divided]
    train, test = (_load_split(part, image_size, on_progress) for part in parts)
    return RetrievalData(path.name, train, test)


def _listed(path: Path) -> dict[str, list[Path]]:
    """The images of a list by class, all of which must be there."""
    listed = read_list(path).whole()
    missing = [f"{file} (No such file)" for file in listed.files if not file.is_file()]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(listed.files)} images are not there: {few(missing)}. Paths are relative to "
            f"{path.parent.absolute()}"
        )
    classes: dict[str, list[Path]] = {name: [] for name in listed.class_names}
    for file, label in zip(listed.files, listed.labels, strict=True):
        classes[listed.class_names[label]].append(file)
    return classes


def files_by_class(folder: Path, on_progress: OnProgress = silent) -> dict[str, list[Path]]:
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
        raise UsageError(f"{folder}: no images; expected files such as {folder}/some-class/image.jpg")
    return classes


def has_own_split(root: Path) -> bool:
    """Tell whether a folder holds a training and a test part."""
    return (root / "train").is_dir() and (root / "test").is_dir()


def _load_split(classes: dict[str, list[Path]], image_size: int, on_progress: OnProgress) -> Split:
    files = [file for members in classes.values() for file in members]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(members) for members in classes.values()])
    path = cache_folder() / f"images-{_fingerprint(files, image_size)}.npy"
    make_once(lambda: write_whole(path, lambda file: _decode_all(files, image_size, file, on_progress)), path)
    return Split(read_array(path, "r"), labels, tuple(classes), [str(file.absolute()) for file in files])


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


def _decode_all(files: list[Path], image_size: int, output: BinaryIO, on_progress: OnProgress) -> None:
    broken = list(write_decoded(files, image_size, output, on_progress).values())
    if broken:
        raise UsageError(f"{len(broken)} images cannot be read; repair or remove them: {few(broken)}")
