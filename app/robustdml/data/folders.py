"""Folders of images, one folder a class, as most data sets come, and lists of images.

Images are decoded once into a memory-mapped array in the cache folder: every epoch after that reads pixels, and a file
that cannot be decoded is found before training starts rather than in the middle of it.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from robustdml.cache import NAMES, cache_folder, make_once, read_array, write_whole
from robustdml.data.dataset import RetrievalData, Split, divide_classes
from robustdml.data.images import decode, few, image_files
from robustdml.data.lists import read_list
from robustdml.errors import UsageError
from robustdml.progress import OnProgress, silent

BLOCK = 256
RECIPE_VERSION = 1


def load_folder(
    root: Path,
    *,
    image_size: int = 224,
    test_fraction: float = 0.5,
    split_seed: int = 0,
    on_progress: OnProgress = silent,
) -> RetrievalData:
    """Read ``root/class/…/image`` files, or ``root/train/class/…`` and ``root/test/class/…`` where both exist."""
    _check_size(image_size)
    if has_own_split(root):
        parts = [files_by_class(root / part, on_progress) for part in ("train", "test")]
    else:
        parts = _divided(files_by_class(root, on_progress), root, test_fraction, split_seed)
    train, test = (_load_split(part, image_size, on_progress) for part in parts)
    return RetrievalData(root.name, train, test)


def load_list(
    path: Path,
    *,
    image_size: int = 224,
    test_fraction: float = 0.5,
    split_seed: int = 0,
    on_progress: OnProgress = silent,
) -> RetrievalData:
    """Read the images that a list names with their classes."""
    _check_size(image_size)
    listed = read_list(path).whole()
    missing = [f"{file} (No such file)" for file in listed.files if not file.is_file()]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(listed.files)} images are not there: {few(missing)}. Paths are relative to "
            f"{path.parent.absolute()}"
        )
    parts = _divided(listed.by_class(), path, test_fraction, split_seed)
    train, test = (_load_split(part, image_size, on_progress) for part in parts)
    return RetrievalData(path.name, train, test)


def _check_size(image_size: int) -> None:
    if image_size < 1:
        raise UsageError(f"image_size={image_size}: expected at least 1")


def _divided(
    classes: dict[str, list[Path]], source: Path, test_fraction: float, split_seed: int
) -> list[dict[str, list[Path]]]:
    """Training and test classes."""
    names = list(classes)
    parts = divide_classes(len(names), str(source), test_fraction, split_seed)
    return [{names[label]: classes[names[label]] for label in part} for part in parts]


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
    """Return what the decoded array depends on: the files as they lie there, and the size."""
    digest = hashlib.sha256(f"{RECIPE_VERSION} {image_size}".encode())
    real = cache(os.path.realpath)  # Of folders alone, and by texts: there may be millions of files.
    for path in map(os.fspath, files):
        folder, name = os.path.split(path)
        status = os.stat(path)
        told = f"{real(folder)}{os.sep}{name}\0{status.st_size}\0{status.st_mtime_ns}\0"
        digest.update(told.encode("utf-8", NAMES))
    return digest.hexdigest()[:16]


def _decode_all(files: list[Path], image_size: int, output: BinaryIO, on_progress: OnProgress) -> None:
    shape = (len(files), 3, image_size, image_size)
    np.lib.format.write_array_header_1_0(output, {"descr": "|u1", "fortran_order": False, "shape": shape})
    broken: list[str] = []
    with ThreadPoolExecutor() as pool:
        # In blocks, so that decoded images do not pile up ahead of the disk.
        for start in range(0, len(files), BLOCK):
            on_progress("reading images", start, len(files))
            for pixels in pool.map(lambda file: decode(file, image_size), files[start : start + BLOCK]):
                if isinstance(pixels, str):
                    broken.append(pixels)
                else:
                    output.write(pixels.tobytes())
    if broken:
        raise UsageError(f"{len(broken)} images cannot be read; repair or remove them: {few(broken)}")
