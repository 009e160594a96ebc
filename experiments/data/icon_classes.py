"""Classes of icons: which drawings are copies of one another, and which names mean the same thing.

A *drawing* is a number, that of the first of the files that look the same.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

# Two drawings of one name are copies where they differ by at most this share of their ink.
COPY_DIFFERENCE = 0.15

# Of each icon name the drawing in each family of themes that has it.
Drawings = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class IconClass:
    """Names that mean the same thing."""

    names: tuple[str, ...]  # The one that most families have comes first: it names the class
    samples: dict[str, int]  # Drawing by family, no drawing twice


def find_copies(
    thumbnails: NDArray[np.uint8], digests: Sequence[Hashable], groups: Iterable[Sequence[int]]
) -> list[int]:
    """Find of each file the first one that it is a copy of, or itself."""
    first: dict[Hashable, int] = {}
    alike = [(first.setdefault(digest, file), file) for file, digest in enumerate(digests)]
    for group in groups:
        files = np.unique(np.asarray(group))
        pictures = 255 - thumbnails[files].reshape(len(files), -1).astype(np.float32)
        ink = pictures.mean(axis=1)
        for one, picture in enumerate(pictures[:-1]):
            difference = np.abs(pictures[one + 1 :] - picture).mean(axis=1)
            near = np.flatnonzero(difference <= COPY_DIFFERENCE * np.maximum(ink[one + 1 :], ink[one]))
            alike += [(int(files[one]), int(files[one + 1 + other])) for other in near]
    rows, columns = np.array(alike, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(alike), dtype=bool), (rows, columns)), shape=(len(digests), len(digests)))
    component = connected_components(graph, directed=False)[1]
    _, first_of, copy = np.unique(component, return_index=True, return_inverse=True)
    return [int(file) for file in first_of[copy]]


def join_names(drawings: Drawings) -> list[tuple[str, ...]]:
    """Join names that are one drawing in most of the families that have both, and in two families at least.

    Notes
    -----
    Pairs are joined one after another, those first that most families agree on. Two groups are joined as two names
    are, with the drawings of `_merged`: a chain of names, each like the next, does not join its ends.
    """
    group: dict[str, tuple[str, ...]] = {name: (name,) for name in drawings}
    merged = dict(drawings)
    agreed = {pair: _votes(drawings[pair[0]], drawings[pair[1]])[0] for pair in shared_names(drawings)}
    for one, other in sorted(agreed, key=lambda pair: (-agreed[pair], pair)):
        left, right = group[one], group[other]
        same, all_votes = _votes(merged[left[0]], merged[right[0]])
        if left == right or same < 2 or 2 * same <= all_votes:
            continue
        names = tuple(sorted(left + right, key=lambda name: (-len(drawings[name]), name)))
        merged[names[0]] = _merged(drawings, names)
        group.update(dict.fromkeys(names, names))
    return sorted(set(group.values()))


def shared_names(drawings: Drawings) -> set[tuple[str, str]]:
    """List pairs of names that are one drawing in some family."""
    names: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name in sorted(drawings):
        for place in drawings[name].items():
            names[place].append(name)
    return {pair for group in names.values() for pair in combinations(group, 2)}


def make_classes(drawings: Drawings, groups: Iterable[tuple[str, ...]]) -> list[IconClass]:
    """Choose the samples of each class: of each family its drawing of the first name that it has, copies left out."""
    classes = []
    for names in sorted(groups):
        samples: dict[int, str] = {}
        for family, drawing in sorted(_merged(drawings, names).items()):
            samples.setdefault(drawing, family)
        classes.append(IconClass(names, {family: drawing for drawing, family in samples.items()}))
    return classes


def count_ambiguous(classes: Iterable[IconClass]) -> int:
    """Count the samples whose drawing is a sample of another class too."""
    times = Counter(drawing for icon in classes for drawing in icon.samples.values())
    return sum(count for count in times.values() if count > 1)


def _votes(one: Mapping[str, int], other: Mapping[str, int]) -> tuple[int, int]:
    """How many families draw both names the same, and how many have both."""
    votes = {(one[family], other[family]) for family in one.keys() & other.keys()}
    return sum(left == right for left, right in votes), len(votes)


def _merged(drawings: Drawings, names: Iterable[str]) -> dict[str, int]:
    """Of each family its drawing of the first name that it has."""
    merged: dict[str, int] = {}
    for name in names:
        merged = {**drawings[name], **merged}
    return merged
