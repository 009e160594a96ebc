"""Images that stay in their files: decoded when a batch needs them, and checked once for broken ones."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robustdml.arrays import Array, Pixels, Rows
from robustdml.cache import NAMES, cache_folder, make_private, write_text
from robustdml.data.images import most_megapixels, read_ahead
from robustdml.errors import UsageError, counted, few
from robustdml.plain_files import read_json
from robustdml.progress import OnProgress

# Files between two notes of how far a check has come, and the side of the images in it.
_BLOCK, _SIDE = 1024, 8
DEFAULT_IMAGE_SIZE = 224


class ImageFiles:
    """Images in files, uint8 (N, channels, size, size): indexing decodes them, and nothing is kept."""

    ndim, dtype = 4, np.dtype(np.uint8)

    def __init__(self, files: Sequence[Path], size: int = DEFAULT_IMAGE_SIZE, channels: int = 3) -> None:
        self.files, self.shape = files, (len(files), channels, size, size)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: slice | Rows | int) -> Pixels:
        if isinstance(key, int | np.integer):
            return np.asarray(self[np.array([key])][0])
        return next(self.batches([key]))

    def take(self, rows: Rows) -> "ImageFiles":
        """Take some images; none is decoded."""
        return ImageFiles([self.files[row] for row in rows], self.shape[2], self.shape[1])

    def batches(self, chosen: Iterable[slice | Rows]) -> Iterator[Pixels]:
        """Decode batches, each while the one before is used."""
        every = range(len(self))
        rows = (every[key] if isinstance(key, slice) else key.tolist() for key in chosen)
        for images in read_ahead(self.files, rows, self.shape[2], self.shape[1]):
            if broken := [one for one in images if isinstance(one, str)]:
                raise UsageError(f"{counted(len(broken), 'image')} can be read no longer: {few(broken)}")
            yield np.stack(images) if images else np.zeros((0, *self.shape[1:]), np.uint8)


# What a split has of its samples.
Inputs: TypeAlias = NDArray[Any] | ImageFiles


def batches_of(inputs: Inputs, chosen: Iterable[slice | Rows]) -> Iterator[Array]:
    """Give batch after batch; files are decoded a batch ahead."""
    return inputs.batches(chosen) if isinstance(inputs, ImageFiles) else (inputs[key] for key in chosen)


def find_broken(files: Sequence[Path], on_progress: OnProgress) -> dict[int, str]:
    """Find the files that cannot be read, by row, with the reason; an interrupted check goes on where it was."""
    path = cache_folder() / "checked" / f"{fingerprint(files)}-{most_megapixels():g}.json"
    make_private(path.parent)
    known = read_json(path, "list of broken images; delete it, and it is made again") if path.exists() else {}
    done, broken = known.get("done", 0), {int(row): reason for row, reason in known.get("broken", {}).items()}
    blocks = [range(start, min(start + _BLOCK, len(files))) for start in range(done, len(files), _BLOCK)]
    for block, images in zip(blocks, read_ahead(files, blocks, _SIDE), strict=True):
        on_progress("checking images", block.start, len(files))
        broken |= {row: one for row, one in zip(block, images, strict=True) if isinstance(one, str)}
        write_text(path, json.dumps({"done": block.stop, "broken": broken}))
    return broken


def copies_between(train: Sequence[Path], test: Sequence[Path], on_progress: OnProgress) -> list[str]:
    """Say which test images are copies of training images, byte for byte."""
    by_size: dict[int, tuple[list[Path], list[Path]]] = {}
    for part, files in enumerate((train, test)):
        for file in files:
            with suppress(OSError):  # Gone since it was listed.
                by_size.setdefault(file.stat().st_size, ([], []))[part].append(file)
    found = []
    both = [parts for parts in by_size.values() if all(parts)]
    for done, (of_train, of_test) in enumerate(both):
        on_progress("looking for copies", done, len(both))
        known = {content_of(file): file for file in reversed(of_train)}
        found += [f"{file} (of {known[content_of(file)]})" for file in of_test if content_of(file) in known]
    return [f"{counted(len(found), 'test image')} copied from the training part: {few(sorted(found))}"] if found else []


def content_of(file: Path) -> bytes:
    """Digest of the content of a file."""
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as opened:
        while block := opened.read(2**20):
            digest.update(block)
    return digest.digest()


def fingerprint(files: Sequence[Path]) -> str:
    """Hash of paths, sizes and times of files."""
    digest = hashlib.sha256()
    real = cache(os.path.realpath)  # Of folders alone, and by texts: there may be millions of files.
    for path in map(os.fspath, files):
        folder, name = os.path.split(path)
        digest.update(f"{real(folder)}{os.sep}{name}\0{seen(path)}\0".encode("utf-8", NAMES))
    return digest.hexdigest()[:16]


def seen(file: str) -> str:
    """Size and time of a file, as a text."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"
