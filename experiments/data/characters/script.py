"""A script as data sets: classes for pretraining, training and testing."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from experiments.data.characters.atlas import Atlas
from robustdml.data.dataset import RetrievalData, Split
from robustdml.errors import UsageError


@dataclass(frozen=True)
class ClassRange:
    """A range of the classes of an atlas, which are in random order."""

    start: int
    stop: int  # Exclusive


@dataclass(frozen=True)
class Script:
    """The characters of one script, drawn."""

    atlas: Atlas  # The drawings
    packages: str  # Debian packages with enough typefaces for all data sets
    pretraining: ClassRange  # Classes to pretrain the backbone on, disjoint from all others
    parts: Mapping[str, tuple[ClassRange, ClassRange]]  # Training and test classes by name of the data set

    def load(self, name: str) -> RetrievalData:
        """Load a data set."""
        train, test = (self._take(name, part) for part in self.parts[name])
        return RetrievalData(name, train, test)

    def load_pretraining(self) -> Split:
        """The classes to pretrain the backbone on."""
        return self._take(f"{self.atlas.name} for pretraining", self.pretraining)

    def _take(self, name: str, part: ClassRange) -> Split:
        images, codes = self.atlas.load()
        starts = np.append(np.flatnonzero(np.diff(codes, prepend=-1)), len(codes))
        if len(starts) <= part.stop:
            raise UsageError(
                f"{name}: the typefaces found here draw {len(starts) - 1:,} characters in {self.atlas.at_least} ways "
                f"or more, and {part.stop:,} are needed; install more typefaces (Debian, Ubuntu: apt install "
                f"{self.packages})"
            )
        bounds = starts[part.start : part.stop + 1]
        labels = np.repeat(np.arange(part.stop - part.start, dtype=np.int64), np.diff(bounds))
        names = tuple(_class_name(int(codes[start])) for start in bounds[:-1])
        return Split(images[bounds[0] : bounds[-1]], labels, names)


def _class_name(code: int) -> str:
    """``U+AC00 HANGUL SYLLABLE GA``; where the name says no more than the number, the character: ``U+4E00 一``."""
    name = unicodedata.name(chr(code), "")
    return f"U+{code:04X} {chr(code) if name.endswith(f'-{code:04X}') or not name else name}"
