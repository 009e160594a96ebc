"""Errors that the command line turns into one line of text, and the words that it finds for them."""

import errno
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

# Names of what may be many that a message has.
MAX_NAMED = 10


# Characters that a terminal obeys, or that turn the text beside them, for a regular expression.
OBEYED = "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"


class UsageError(ValueError):
    """The command cannot be carried out as given; the message says what to change."""


class UnknownNameError(UsageError):
    """An unknown name of a method, a noise, a filter."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = list(known)
        super().__init__(f"{what} {name!r}: expected one of {', '.join(known)}{did_you_mean(name, known)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name that is most like another."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def in_one_line(text: str) -> str:
    """Write out what a terminal would obey rather than show: names of files may hold anything."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line, on standard output by default."""
    print(in_one_line(text), file=file)


def few(names: Sequence[str]) -> str:
    """Name the first few of possibly many."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return "; ".join(map(in_one_line, names[:MAX_NAMED])) + more


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: 1 query, 2,048 queries."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def reason_of(error: BaseException) -> str:
    """The first words of an error, in one line; its type where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def expanded(path: str) -> Path:
    """Write out the ``~`` that a path may begin with."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_want_of_memory(error: BaseException) -> bool:
    """Tell whether memory was asked for and not given."""
    words = ("can't allocate memory", "not enough memory", "out of memory", "can't start new thread")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)


def disk_error(error: OSError) -> str:
    """Say what failed on the disk, and where."""
    reason = (error.strerror or str(error)).lower()
    if error.filename is None:
        return f"standard output, or a file without a name: {reason}"
    path = Path(error.filename)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        file = next((place for place in (path, *path.parents) if place.is_file()), None)
        if file is not None:
            return f"{file} is a file, and a folder is needed there"
    return f"{path}: {reason}"


@contextmanager
def quiet(library: str) -> Iterator[None]:
    """Keep warnings, and what a library logs below an error, from the terminal."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
