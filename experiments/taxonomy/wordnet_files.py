"""The files of WordNet's nouns: where they are, and what a line of theirs holds.

``wndb(5WN)`` describes them. In ``data.noun`` a line is a synset, a set of nouns of one meaning: its place, file
number, type, a hexadecimal number of words and for each word the word and an id; then a decimal number of pointers and
for each a symbol, a place, a part of speech and four digits; then a bar and the gloss, a definition that examples in
quotation marks may follow. ``@`` points to a hypernym, ``@i`` from an instance to its class. The place is that of the
line itself in bytes, with eight digits.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from robustdml.errors import UsageError

_USUAL_PLACES = ("/usr/share/wordnet", "/usr/local/WordNet-3.0/dict", "/usr/local/share/wordnet/dict")


@dataclass(frozen=True)
class Synset:
    """A line of ``data.noun``."""

    place: int  # Where the line begins
    words: tuple[str, ...]  # Its nouns, with `_` for blanks
    hypernyms: tuple[int, ...]  # Places of what is above it, the class of an instance included
    gloss: str  # Its definition and examples


def find_wordnet(needed_by: str = "taxonomy") -> Path:
    """Folder of an installed WordNet: ``WNSEARCHDIR``, ``WNHOME/dict`` or the usual places."""
    chosen = os.environ.get("WNSEARCHDIR"), os.environ.get("WNHOME") and f"{os.environ['WNHOME']}/dict"
    for place in filter(None, (*chosen, *_USUAL_PLACES)):
        if all((Path(place) / name).is_file() for name in ("index.noun", "data.noun")):
            return Path(place)
    raise UsageError(
        f"{needed_by}: no WordNet found; install one (Debian, Ubuntu: apt install wordnet-base) or name the folder of "
        "index.noun and data.noun in the environment variable WNSEARCHDIR"
    )


def read_synsets(path: Path) -> Iterator[Synset]:
    """Read all of ``data.noun``."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            # The licence stands in lines that begin with blanks.
            if not line.startswith(" "):
                yield parse_synset(line)


def parse_synset(line: str) -> Synset:
    """Read one line of ``data.noun``."""
    head, _, gloss = line.partition(" | ")
    fields = head.split()
    first = 4 + 2 * int(fields[3], 16)
    pointers = zip(*[iter(fields[first + 1 : first + 1 + 4 * int(fields[first])])] * 4, strict=True)
    hypernyms = tuple(int(place) for symbol, place, _, _ in pointers if symbol in ("@", "@i"))
    return Synset(int(fields[0]), tuple(fields[4:first:2]), hypernyms, gloss.strip())
