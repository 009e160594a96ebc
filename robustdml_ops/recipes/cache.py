"""The cache folder, and files that are either whole or absent."""

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
    """
    path.parent.mkdir(parents=True, exist_ok=True)
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
