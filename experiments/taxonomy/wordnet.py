"""Trees from WordNet 3.0: the hypernyms of class names, up to a common root.

``index.noun`` has a line for each noun: the noun in lower case with ``_`` for blanks, ``n``, the number of its senses,
a number of pointer types and these, two more numbers, and for each sense, the most frequent first, the place of its
line in ``data.noun``, which `experiments.taxonomy.wordnet_files` describes.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from experiments.taxonomy.tree import ClassTree
from experiments.taxonomy.wordnet_files import find_wordnet, parse_synset
from robustdml.errors import UsageError

_SYNSET = re.compile(r"n(\d{8})(?!\w)")


def tree_from_wordnet(class_names: Sequence[str], root: str = "entity", folder: Path | None = None) -> ClassTree:
    """Build the tree of classes from the hypernyms of their names."""
    with (folder or find_wordnet()).joinpath("data.noun").open("rb") as data:
        nouns = _Nouns(folder or find_wordnet(), data)
        roots = nouns.senses(_words(root))
        if not roots:
            raise UsageError(f"taxonomy: the root {root!r} is no noun of WordNet")
        failures = []
        for synset in roots:
            paths = [nouns.path(name, synset) for name in class_names]
            failures.append([name for name, path in zip(class_names, paths, strict=True) if path is None])
            if not failures[-1]:
                return ClassTree([path for path in paths if path is not None])
        fewest = min(failures, key=len)
        raise UsageError(
            f"taxonomy: {len(fewest)} of {len(class_names)} classes have no noun under {root!r} in WordNet, the first "
            f"is {fewest[0]!r}; give a wider root (wordnet:ROOT), or a taxonomy of your own"
        )


class _Nouns:
    """The nouns of one WordNet, with its data file open."""

    def __init__(self, folder: Path, data: BinaryIO) -> None:
        self._index, self._data = _read_index(folder / "index.noun"), data
        self._parents: dict[int, tuple[int, ...]] = {}
        self._distances: dict[tuple[int, int], int | None] = {}

    def senses(self, words: tuple[str, ...]) -> tuple[int, ...]:
        """Places of the synsets of a noun, the most frequent sense first."""
        return self._index.get(" ".join(words), ())

    def path(self, name: str, root: int) -> tuple[str, ...] | None:
        """Nodes from the root down to the synset that a class name means, or None."""
        if match := _SYNSET.match(name):
            synset = int(match[1])
            return None if self._distance(synset, root) is None else self._path(synset, root)
        for words in _runs(_words(name)):
            for synset in self.senses(words):
                if self._distance(synset, root) is not None:
                    return self._path(synset, root)
        return None

    def _path(self, synset: int, root: int) -> tuple[str, ...]:
        path = [synset]
        while path[-1] != root:
            path.append(min(self._hypernyms(path[-1]), key=lambda parent: self._rank(parent, root)))
        return tuple(f"{place:08d}" for place in reversed(path))

    def _rank(self, synset: int, root: int) -> float:
        distance = self._distance(synset, root)
        return float("inf") if distance is None else distance

    def _distance(self, synset: int, root: int) -> int | None:
        """Steps up to the root; None if it is not an ancestor."""
        if synset == root:
            return 0
        if (synset, root) not in self._distances:
            # Ends the recursion in a damaged file with a cycle.
            self._distances[synset, root] = None
            above = [self._distance(parent, root) for parent in self._hypernyms(synset)]
            self._distances[synset, root] = min((steps + 1 for steps in above if steps is not None), default=None)
        return self._distances[synset, root]

    def _hypernyms(self, synset: int) -> tuple[int, ...]:
        if synset not in self._parents:
            self._data.seek(synset)
            line = self._data.readline().decode()
            if not line.startswith(f"{synset:08d} "):
                raise UsageError(f"taxonomy: {self._data.name} has no synset at {synset}; is it of the same WordNet?")
            self._parents[synset] = parse_synset(line).hypernyms
        return self._parents[synset]


@cache
def _read_index(path: Path) -> dict[str, tuple[int, ...]]:
    """Places of the synsets of each noun, hyphens read as blanks."""
    senses: dict[str, tuple[int, ...]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        # The licence stands in lines that begin with blanks.
        if not line.startswith(" "):
            fields = line.split()
            found = tuple(int(place) for place in fields[len(fields) - int(fields[2]) :])
            key = " ".join(_words(fields[0]))
            senses[key] = (*senses.get(key, ()), *found)
    return senses


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W_]+", name.lower()))


def _runs(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Runs of words, longest first, then last first."""
    for size in range(len(words), 0, -1):
        for start in range(len(words) - size, -1, -1):
            yield words[start : start + size]
