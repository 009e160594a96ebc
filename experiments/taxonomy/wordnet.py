"""The nouns of WordNet 3.0, and trees of their hypernyms.

``wndb(5WN)`` describes ``data.noun``. A line is a synset, a set of nouns of one meaning: its place, file number, type,
a hexadecimal number of words and for each word the word and an id; then a decimal number of pointers and for each a
symbol, a place, a part of speech and four digits; then a bar and the gloss, a definition that examples in quotation
marks may follow. ``@`` points to a hypernym, ``@i`` from an instance to its class. The place is the byte where the line
begins, with eight digits.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments.taxonomy.tree import ClassTree
from robustdml.errors import UsageError

_USUAL_PLACES = ("/usr/share/wordnet", "/usr/local/WordNet-3.0/dict", "/usr/local/share/wordnet/dict")


@dataclass(frozen=True)
class Synset:
    """A line of ``data.noun``."""

    place: int  # Where the line begins
    words: tuple[str, ...]  # Its nouns, with `_` for blanks
    hypernyms: tuple[int, ...]  # Places of its hypernyms, and of the class of an instance
    gloss: str  # Its definition and examples


def tree_from_wordnet(class_names: Sequence[str]) -> ClassTree:
    """Build the tree of classes that are named after synsets, as ``n07775905 saltwater fish``, from their hypernyms."""
    synsets = {synset.place: synset for synset in read_synsets(find_wordnet())}
    depth = depths(synsets)

    def path(name: str) -> tuple[str, ...]:
        found = re.match(r"n(\d{8})\b", name)
        if not found or int(found[1]) not in synsets:
            raise UsageError(f"taxonomy: class {name!r} is no synset of WordNet")
        places = [int(found[1])]
        while above := synsets[places[-1]].hypernyms:
            places.append(min(above, key=depth))
        return tuple(f"{place:08d}" for place in reversed(places))

    return ClassTree([path(name) for name in class_names])


def depths(synsets: Mapping[int, Synset]) -> Callable[[int], int]:
    """A function from the place of a synset to its depth: steps from a root by the shortest way."""

    @cache
    def depth(place: int) -> int:
        return min((depth(above) + 1 for above in synsets[place].hypernyms), default=0)

    return depth


def find_wordnet(needed_by: str = "taxonomy") -> Path:
    """``data.noun`` of an installed WordNet: in ``WNSEARCHDIR``, ``WNHOME/dict`` or the usual places."""
    chosen = os.environ.get("WNSEARCHDIR"), os.environ.get("WNHOME") and f"{os.environ['WNHOME']}/dict"
    for place in filter(None, (*chosen, *_USUAL_PLACES)):
        if (Path(place) / "data.noun").is_file():
            return Path(place) / "data.noun"
    raise UsageError(
        f"{needed_by}: no WordNet found; install one (Debian, Ubuntu: apt install wordnet-base) or name the folder of "
        "data.noun in the environment variable WNSEARCHDIR"
    )


def read_synsets(path: Path) -> Iterator[Synset]:
    """Read all of ``data.noun``."""
    with path.open(encoding="utf-8") as file:
        # Lines of the licence begin with blanks.
        yield from (parse_synset(line) for line in file if not line.startswith(" "))


def parse_synset(line: str) -> Synset:
    """Read one line of ``data.noun``."""
    head, _, gloss = line.partition(" | ")
    fields = head.split()
    first = 4 + 2 * int(fields[3], 16)
    pointers = zip(*[iter(fields[first + 1 : first + 1 + 4 * int(fields[first])])] * 4, strict=True)
    hypernyms = tuple(int(place) for symbol, place, _, _ in pointers if symbol in ("@", "@i"))
    return Synset(int(fields[0]), tuple(fields[4:first:2]), hypernyms, gloss.strip())
