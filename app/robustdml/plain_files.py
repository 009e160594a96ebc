"""Files of plain tensors, arrays, numbers and texts, opened without running anything that is in them.

They may come from strangers: what they claim to hold is looked at before memory is given to it.
"""

import json
import math
import os
import pickle
import stat
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from robustdml.cache import content_is_right, write_checked, write_whole
from robustdml.errors import UsageError, reason_of

# An array that is as large as the first and unpacks to as many times its size as the second is no embedding: zeros
# alone are packed so well.
LARGE, MOST_PACKED = 2**30, 200


class DamagedError(UsageError):
    """A file that is not as it was written."""


# Of an archive, and of a pickle as older versions wrote it.
_BEGINNINGS = (b"PK", b"\x80")
# In what PyTorch says of objects, of programs and of old archives.
_COULD_RUN = ("unsupported", "weights_only=true")
# Tensors may share what is stored; more than so many times the file is a bomb.
_MOST_SHARED = 4
_ZIP_END = 22  # bytes of the record at the end of an archive
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_plain(path: Path, kind: str) -> None:
    """Refuse a path that exists and is no plain file: reading a pipe, or some devices, never ends."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # It is told where it is opened.
        return
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, a device or a socket"
        raise UsageError(f"{path}: not a readable {kind} (it is {what})")
    if status.st_size > _memory():  # As a file with holes claims.
        has = f"it has {status.st_size:,} bytes, and this machine a memory of {_memory():,}"
        raise UsageError(f"{path}: not a readable {kind} ({has})")


def save_plain(path: Path, content: object) -> None:
    """Write a file that is whole or absent, with a checksum."""
    write_checked(path, lambda file: torch.save(content, file))


def read_plain(path: Path, kind: str, checked: bool = False) -> Any:
    """Read what `torch.save` or `save_plain` wrote; where there is a checksum, or must be (``checked``), by it."""
    check_plain(path, kind)
    try:
        right = content_is_right(path)
    except OSError as error:
        raise UsageError(f"{path}: not a readable {kind} ({reason_of(error)})") from error
    if right is False:
        raise DamagedError(f"{path}: a damaged {kind}, whose content does not match its checksum")
    if right is None and checked:
        raise DamagedError(f"{path}: not a {kind}, or a damaged one: it does not end in its checksum")
    with path.open("rb") as file:
        if not (beginning := file.read(2)).startswith(_BEGINNINGS):
            raise UsageError(f"{path}: not a readable {kind} (it does not begin as files of PyTorch do)")
        file.seek(-min(_ZIP_END, path.stat().st_size), os.SEEK_END)
        # PyTorch skips what follows an archive: a checksum whose mark is damaged would check nothing.
        if right is None and beginning == b"PK" and file.read(4) != b"PK\5\6":
            raise DamagedError(f"{path}: a damaged {kind}, which ends neither as an archive nor in a checksum")
    if beginning == b"PK":
        _check_stored(path, kind)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # A damaged file makes `torch.load` raise nearly anything, an IndexError for one.
        what = reason_of(error)
        if isinstance(error, pickle.UnpicklingError):
            what = "it is no pickle of plain tensors, numbers and texts"
        if any(word in str(error).lower() for word in _COULD_RUN):  # PyTorch's own advice is to run it
            what = "it holds objects that could run code; none was run. Take one from where you know who wrote it"
        raise UsageError(f"{path}: not a readable {kind} ({what})") from error
    claimed, size = _bytes_of(content), path.stat().st_size
    if claimed > _MOST_SHARED * size:
        raise UsageError(f"{path}: not a readable {kind} (its tensors claim {claimed:,} bytes, and it has {size:,})")
    return content


def _check_stored(path: Path, kind: str) -> None:
    """Refuse an archive that would unpack to more than it is: PyTorch writes none that is packed."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            packed = [one.filename for one in archive.infolist() if one.compress_type != zipfile.ZIP_STORED]
            unpacked = sum(one.file_size for one in archive.infolist())
    except Exception as error:  # A damaged archive raises nearly anything.
        raise UsageError(f"{path}: not a readable {kind} ({reason_of(error)})") from error
    if packed or unpacked > path.stat().st_size:
        raise UsageError(
            f"{path}: not a readable {kind} (it would unpack to {unpacked:,} bytes, and PyTorch packs none)"
        )


def _bytes_of(content: object) -> int:
    """Bytes of all tensors by their shapes: an expanded tensor has more than are stored."""
    if isinstance(content, torch.Tensor):
        return content.numel() * content.itemsize
    if isinstance(content, dict):
        return sum(map(_bytes_of, content.values()))
    return sum(map(_bytes_of, content)) if isinstance(content, list | tuple) else 0


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """Read an object of JSON."""
    check_plain(path, kind)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a readable {kind} ({reason_of(error)})") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: not a readable {kind} (it holds a {type(content).__name__})")
    return content


def read_npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Read arrays of an ``.npz`` file; others that are in it are not looked at."""
    check_plain(path, ".npz file of plain arrays")
    try:
        # Opened here, because zipfile leaves a file that is no archive open.
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            _check_directory(file, archive)
            there = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            missing = next((key for key in needed if key not in there), None)
            if missing is None:
                return {key: _member(archive, there[key]) for key in (*needed, *optional) if key in there}
    except MemoryError as error:
        raise MemoryError(f"{path}: {reason_of(error)}") from error
    except Exception as error:  # As above: a damaged archive raises a struct.error, a zlib.error, a KeyError …
        raise UsageError(f"{path}: not a readable .npz file of plain arrays ({reason_of(error)})") from error
    raise UsageError(f"{path}: no array {missing!r}; found {', '.join(sorted(there)) or 'nothing'}")


def write_npz(path: Path, **arrays: NDArray[Any]) -> None:
    """Write arrays as an ``.npz`` file that is whole or absent."""
    write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def _check_directory(file: BinaryIO, archive: zipfile.ZipFile) -> None:
    """Raise where a damaged directory hides or renames a member, which `zipfile` takes for one that is not there."""
    file.seek(-_ZIP_END - len(archive.comment), os.SEEK_END)
    count, found = int.from_bytes(file.read(_ZIP_END)[10:12], "little"), len(archive.infolist())
    if count not in (found, 0xFFFF):  # that many, or more
        raise ValueError(f"its directory has {found} members, and counts {count}")
    for info in archive.infolist():
        archive.open(info).close()  # compares the two places of its name


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    size, packed = info.file_size, info.compress_size
    if size > LARGE and size > MOST_PACKED * packed:
        raise ValueError(f"{info.filename} would unpack from {packed:,} bytes to {size:,}")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in _HEADERS:
            raise ValueError(f"an array of version {version}, which names fields beyond ASCII: expected plain numbers")
        shape, _, dtype = _HEADERS[version](member)
        if dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded: they may run code")
        claimed = math.prod(shape) * dtype.itemsize
        if claimed != size - member.tell():
            raise ValueError(f"{info.filename} is of shape {shape} by its header, and has {size - member.tell()} bytes")
    if claimed > _memory():
        raise MemoryError(f"{info.filename} takes {claimed:,} bytes, and this machine has {_memory():,}")
    with archive.open(info) as member:
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


def _memory() -> int:
    """Bytes of memory that the machine has."""
    names = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    known = all(name in getattr(os, "sysconf_names", {}) for name in names)
    return math.prod(os.sysconf(name) for name in names) if known else 2**63
