"""The cache folder, files that are either whole or absent, and locks.

Locks end with whoever holds them, however that ends. They are the kernel's (``flock``), on a file: a process that is
killed leaves the file, and no lock. Where the system or the disk has no locks, as on Windows or on some network disks,
whatever would be kept apart goes on side by side.
"""

import errno
import hashlib
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from robustdml.errors import UsageError

if sys.platform != "win32":
    import fcntl

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# What a lock file of a folder is called.
LOCK = ".robustdml.lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
# How a file ends that is not whole yet; before that stands the machine that writes it.
UNFINISHED = ".part"
# How texts with names of files are written and read, for not all of them are UTF-8.
NAMES = "surrogateescape"
# Seconds without a change after which what another machine was writing is given up: not all disks tell its locks.
GIVEN_UP = 24 * 3600
# Behind the content of a file that `write_checked` wrote; then comes the SHA-256 of it in hexadecimal digits.
CHECKSUM = b"\nsha256:"
_DIGITS = 64


def cache_folder() -> Path:
    """Folder for data that can be computed again: ``ROBUSTDML_CACHE``, or one in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    try:
        if chosen := os.environ.get("ROBUSTDML_CACHE"):
            return Path(chosen).expanduser()
        base = os.environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path.home() / ".cache") / "robustdml_ops"
    except RuntimeError as error:
        raise UsageError(f"no folder for the cache ({error}): name one in ROBUSTDML_CACHE") from error


_temporary: list[tempfile.TemporaryDirectory[str]] = []  # Of this process, made when it is needed
_lasts = [True]


def kept_folder(lasting: bool = True) -> Path:
    """Folder for data computed from images: the cache folder, or a temporary one under `nothing_kept`."""
    if lasting and _lasts[0]:
        return cache_folder()
    if not _temporary:
        _temporary.append(tempfile.TemporaryDirectory(prefix="robustdml-"))
    return Path(_temporary[0].name)


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Use nothing that was made of images before, and keep nothing of it beyond the end."""
    _lasts[0] = False
    try:
        yield
    finally:
        _lasts[0] = True
        while _temporary:
            _temporary.pop().cleanup()


def make_private(folder: Path) -> None:
    """Make a folder of the cache. Results depend on its files, so only this user may write to it."""
    top = cache_folder()
    # Each in turn: the ones between would be made with the rights of any folder.
    for place in [one for one in (*reversed(folder.parents), folder) if one.is_relative_to(top)] or [folder]:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = place.stat()
        if sys.platform == "win32":
            continue
        if status.st_uid != os.geteuid():
            raise UsageError(f"cache {place}: belongs to another user; name a folder of your own in ROBUSTDML_CACHE")
        if not status.st_mode & _OTHERS_WRITE:
            continue
        if not os.environ.get("ROBUSTDML_CACHE"):  # A folder of this package alone, made under a wide umask.
            place.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
        else:
            raise UsageError(
                f"cache {place}: other users may write to it, and what is in it would be taken for your own; take that "
                "right away (chmod go-w), or name another folder in ROBUSTDML_CACHE"
            )


def make_once(make: Callable[[], object], *files: Path) -> None:
    """Make files of the cache where one is missing; one process makes them, others wait for it."""
    first = files[0]
    make_private(first.parent)
    if all(file.exists() for file in files):
        return
    with in_turn(first.with_name(f".{first.name}.lock")):
        if not all(file.exists() for file in files):
            make()


def read_array(path: Path, mmap_mode: Literal["r", "c"] | None = None) -> NDArray[Any]:
    """Read an array that was written whole; where there is a checksum, by it, for which all of it is read once."""
    try:
        if path.exists() and not path.is_file():  # A pipe would keep it waiting.
            raise ValueError("no plain file")
        if content_is_right(path) is False:
            raise ValueError("its content does not match its checksum")
        array: NDArray[Any] = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path}: damaged ({error}); delete it, and it is made again") from error
    return array


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file through a temporary neighbour and a rename, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _naming(path):
        _take_away_unfinished(path.parent)
        handle, temporary = _new_file(path.parent)
        try:
            with os.fdopen(handle, "w+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                # mkstemp makes files private; the result gets the permissions of any other new file.
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(temporary, 0o666 & ~umask)
                if sys.platform == "win32":
                    file.close()  # An open file cannot be given another name there.
                # While the file is locked, so that nobody takes it away.
                os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give an error of the disk the name of the file, unless it is about another file, one that is read meanwhile."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # `torch.save` ends in an error of its own, raised over that of the disk.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        if cause is None or not (cause.filename is None or str(cause.filename).endswith(UNFINISHED)):
            raise
        raise OSError(cause.errno or errno.EIO, cause.strerror or str(cause), str(path)) from error


def write_checked(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file as `write_whole` does, with a checksum behind its content."""

    def write_both(file: BinaryIO) -> None:
        write(file)
        _add_checksum(file)

    write_whole(path, write_both)


@contextmanager
def in_full(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name, and a checksum behind its content, when it is whole; until then it grows.

    What an interrupted process left is opened again, perhaps with a checksum at its end.
    """
    begun = begun_file(path)
    with _naming(path):
        with os.fdopen(_open_own(begun), "r+b") as file:
            lock(file.fileno(), wait=True)
            yield file
            _add_checksum(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(begun, path)


def begun_file(path: Path) -> Path:
    """The file that `in_full` writes to; it is renamed once it is whole."""
    return path.with_name(f".{path.name}.begun")


def take_away(file: Path) -> bool:
    """Delete a file, unless the process that writes it lives."""
    if not file.is_file():
        return False
    with suppress(OSError, UsageError), os.fdopen(_open_own(file), "rb+") as opened:  # Not ours to take away.
        if lock(opened.fileno(), wait=False) is True:
            file.unlink()
            return True
    return False


def _add_checksum(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    file.write(CHECKSUM + _digest(file, size))


def _digest(file: BinaryIO, size: int) -> bytes:
    """SHA-256 of the first bytes of a file, in hexadecimal digits; the file is behind them then."""
    digest = hashlib.sha256()
    file.seek(0)
    while size and (block := file.read(min(size, 2**20))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest().encode()


def content_is_right(path: Path) -> bool | None:
    """Whether the content matches the checksum behind it; None where there is none."""
    size = path.stat().st_size - len(CHECKSUM) - _DIGITS
    if size < 0:
        return None
    with path.open("rb") as file:
        file.seek(size)
        mark, expected = file.read(len(CHECKSUM)), file.read()
        return _digest(file, size) == expected if mark == CHECKSUM else None


def _new_file(folder: Path) -> tuple[int, str]:
    """A file that nobody takes away while this process lives."""
    while True:
        # Its own name is not that of the file: that may be as long as names can be.
        handle, name = tempfile.mkstemp(dir=folder, prefix=".", suffix=_unfinished_here())
        lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            return handle, name
        # Another process found it before it was locked, and took it for one of a process that was killed.
        os.close(handle)


def _take_away_unfinished(folder: Path) -> None:
    for file in folder.glob(f".*{UNFINISHED}"):
        with suppress(OSError):
            if file.name.endswith(_unfinished_here()) or time.time() - file.stat().st_mtime >= GIVEN_UP:
                take_away(file)


def _unfinished_here() -> str:
    return f".{socket.gethostname()[:64]}{UNFINISHED}"


def check_writable(folder: Path) -> None:
    """Refuse a folder that no file can be written to, before the work is done."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise UsageError(f"out {str(folder)!r}: {there} is a file, where a folder is needed")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"out {str(folder)!r}: no permission to write to {there}")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as `write_whole` does."""
    write_whole(path, lambda file: file.write(text.encode(errors=NAMES)))


@contextmanager
def sole_use(path: Path, of: Path) -> Iterator[None]:
    """Keep all others out, or be refused."""
    made = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _take(path, wait=False)
    if handle is None:
        holder = ""
        with suppress(OSError):
            holder = path.read_text(errors="replace")[:200]
        raise UsageError(f"{of} is in use by {holder or 'another process'}: wait until that ends, or give another name")
    try:
        yield
    finally:
        _leave(path, handle)
        if made:
            with suppress(OSError):  # Not empty.
                path.parent.rmdir()


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait until no other has the lock, and keep all others waiting."""
    handle = _take(path, wait=True)
    assert handle is not None
    try:
        yield
    finally:
        _leave(path, handle)


def lock(handle: int, *, wait: bool) -> bool | None:
    """Lock an open file."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return False if error.errno in _HELD else None
    return True


def _open_own(path: Path) -> int:
    """Open, or make, a plain file that this user has under this one name; its content stays as it is.

    Names of locks and of unfinished files are known beforehand: in a folder of a stranger one may be a link to a file
    of the user, which would be overwritten.
    """
    # Not blocking: nobody may ever write to a pipe. Windows knows neither flag, and needs the other one.
    flags = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | sum(flags), 0o666)
    except OSError as error:
        if not os.path.lexists(path) or (path.is_file() and not path.is_symlink()):
            raise  # Of the disk, or of its rights.
        raise UsageError(f"{path}: no plain file, where one of its own is needed; look at it, and delete it") from error
    status = os.fstat(handle)
    wrong = [] if stat.S_ISREG(status.st_mode) else ["no plain file"]
    if sys.platform != "win32" and status.st_uid != os.geteuid():
        wrong.append("a file of another user")
    if status.st_nlink > 1:
        wrong.append("a file that has another name as well")
    if wrong:
        os.close(handle)
        raise UsageError(f"{path}: {wrong[0]}, where one of its own is needed; look at it, and delete it")
    return handle


def _take(path: Path, *, wait: bool) -> int | None:
    while True:
        handle = _open_own(path)
        if lock(handle, wait=wait) is False:
            os.close(handle)
            return None
        # Who had it before may have taken the file away when it was done.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                break
        os.close(handle)
    # On a full disk the lock holds without a name; what is to be written there will say what is wrong.
    with suppress(OSError):
        os.truncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return handle


def _leave(path: Path, handle: int) -> None:
    # First the file, then the lock: who waits for it sees that the file is another one.
    path.unlink(missing_ok=True)
    os.close(handle)
