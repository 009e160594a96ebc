"""One process at a time: locks that end with whoever holds them, however that ends.

They are the kernel's (``flock``), on a file: a process that is killed leaves the file, and no lock. Where the system or
the disk has no locks, as on Windows or on some network disks, whatever would be kept apart goes on side by side.
"""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from robustdml.errors import UsageError

if sys.platform != "win32":
    import fcntl

# What a lock file of a folder is called.
LOCK = ".robustdml.lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


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


def _take(path: Path, *, wait: bool) -> int | None:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
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
