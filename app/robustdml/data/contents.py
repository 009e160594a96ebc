"""Which files have the same content, and which have changed."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml.arrays import blocks
from robustdml.cache import NAMES, kept_folder, make_private, read_array, write_checked
from robustdml.progress import OnProgress, silent

Contents = NDArray[np.bytes_]  # Digests of files, S16, (N,); empty of a file that cannot be read


def contents_of(files: Sequence[Path], on_progress: OnProgress = silent) -> Contents:
    """Digests of files, (N,); read from the cache where path, size and time are unchanged."""
    path = kept_folder() / "contents" / f"{fingerprint(files)}.npy"
    if path.exists():
        return np.array(read_array(path))
    found = np.empty(len(files), "S16")
    with ThreadPoolExecutor() as pool:
        for block in blocks(len(files), 1024):
            on_progress("looking for copies", block.start, len(files))
            found[block] = list(pool.map(_content_of, files[block]))
    if (found != b"").all():  # Rights may be given later, which neither size nor time tells.
        make_private(path.parent)
        write_checked(path, lambda file: np.save(file, found))
    return found


def _content_of(file: Path) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    try:
        if not file.is_file():  # A pipe is never read.
            return b""
        with file.open("rb") as opened:
            while block := opened.read(2**20):
                digest.update(block)
    except (OSError, ValueError):
        return b""
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
