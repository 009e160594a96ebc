"""The cache folder, and files that are either whole or absent."""

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def cache_folder() -> Path:
    """Folder for what can be made again: ``ROBUSTDML_CACHE``, else ``XDG_CACHE_HOME``, else ``~/.cache``.

    Returns
    -------
    Path
        The folder, which may not exist yet.
    """
    if chosen := os.environ.get("ROBUSTDML_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "robustdml_ops"


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file through a temporary neighbour and a rename, so that no reader ever sees half of it.

    Two processes may write the same path at once: the later rename wins, and both files are whole.

    Parameters
    ----------
    path : Path
        Where the file is to be; missing parents are made.
    write : callable
        Called with the open binary file.

    Raises
    ------
    OSError
        It cannot be written, for the disk is full or the like; with `path` as its ``filename``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_whole(path, write)
    except (OSError, RuntimeError) as error:
        cause = _of_disk(error)
        # An error with a name of its own is about another file, one that `write` reads.
        if cause is None or (cause.filename is not None and Path(cause.filename).parent != path.parent):
            raise
        raise OSError(cause.errno or errno.EIO, cause.strerror or str(cause), str(path)) from error


def _write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; the result gets the permissions of any other new file.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _of_disk(error: BaseException | None) -> OSError | None:
    """What the disk said: `torch.save` ends in an error of its own, raised over that one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as `write_whole` does.

    Parameters
    ----------
    path : Path
        Where the file is to be.
    text : str
        Its content.
    """
    write_whole(path, lambda file: file.write(text.encode()))
