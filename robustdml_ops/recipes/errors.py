"""Errors that the command line turns into one line of text, and the words that it finds for them."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class UsageError(ValueError):
    """What the user asked for cannot be done as asked; the message says what to change."""


class UnknownNameError(UsageError):
    """A name that stands for nothing: a method, a kind of noise, a filter.

    Parameters
    ----------
    what : str
        What it was to name, as ``method``.
    name : str
        The name that was given.
    known : iterable of str
        Those that there are.

    Examples
    --------
    >>> raise UnknownNameError("method", "robsut", ["robust", "mcl"])
    Traceback (most recent call last):
    robustdml_ops.recipes.errors.UnknownNameError: method 'robsut': expected one of robust, mcl; did you mean robust?
    """

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = list(known)
        super().__init__(f"{what} {name!r}: expected one of {', '.join(known)}{did_you_mean(name, known)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is most like another.

    Parameters
    ----------
    name : str
        What was written.
    known : iterable of str
        What could have been meant.

    Returns
    -------
    str
        An end for a message, empty where nothing is alike.

    Examples
    --------
    >>> did_you_mean("--epohcs", ["--epochs", "--seed"])
    '; did you mean --epochs?'
    """
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def in_one_line(text: str) -> str:
    r"""Write out what a terminal would obey rather than show: names of files may hold anything.

    Parameters
    ----------
    text : str
        Such as a message that names a file.

    Returns
    -------
    str
        One line, with ends of lines, control characters and bytes that are not UTF-8 as escapes.

    Examples
    --------
    >>> in_one_line("a\nb \x1b[2J é")
    'a\\nb \\x1b[2J é'
    """
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def expanded(path: str) -> Path:
    """Write out the ``~`` that a path may begin with.

    Parameters
    ----------
    path : str
        As it was given.

    Returns
    -------
    Path
        As it was given, too, where nobody is called so: a file may be.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_want_of_memory(error: BaseException) -> bool:
    """Tell whether memory was asked for and not given.

    Parameters
    ----------
    error : BaseException
        What was raised: PyTorch's allocator says so in a RuntimeError.

    Returns
    -------
    bool
        True also for what memory of a GPU was too small for.
    """
    words = ("can't allocate memory", "not enough memory", "out of memory", "can't start new thread")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)


def disk_error(error: OSError) -> str:
    """Say what failed on the disk, and where.

    Parameters
    ----------
    error : OSError
        What was raised.

    Returns
    -------
    str
        The path, and the reason. Where a file takes the place of a folder, it is the file that is named. What has no
        path is most likely the standard output: errors of files that this package writes have one.
    """
    reason = (error.strerror or str(error)).lower()
    if error.filename is None:
        return f"standard output, or a file without a name: {reason}"
    path = Path(error.filename)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        file = next((place for place in (path, *path.parents) if place.is_file()), None)
        if file is not None:
            return f"{file} is a file, and a folder is needed there"
    return f"{path}: {reason}"
