"""The whole set of icons, made of the themes that are installed: drawn, copies found, names joined, put in order."""

import hashlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from experiments.data.icon_classes import (
    IconClass,
    count_ambiguous,
    find_copies,
    join_names,
    make_classes,
    shared_names,
)
from experiments.data.icon_drawings import SIDE, THUMBNAIL, draw, is_blank, thumbnail
from experiments.data.icon_themes import IconFile

# Drawings that a class has at least, copies not counted.
MIN_SAMPLES = 4
# By how many drawings the census counts classes.
STEPS = (4, 6, 8, 10)
# Contexts that say what is done with an icon, not what it shows.
_NO_CONTEXTS = frozenset({"", "legacy", "ui"})

Families = Mapping[str, Mapping[str, IconFile]]


@dataclass(frozen=True)
class IconSet:
    """All classes, and the pixels of every file of theirs."""

    classes: list[IconClass]  # Those with `MIN_SAMPLES` or more; their drawings are row numbers of `pixels`
    class_names: list[str]  # `context/name` of each
    pixels: NDArray[np.uint8]  # uint8, (files, 3, SIDE, SIDE), memory-mapped
    # What was found, left out and joined, in numbers; `unreadable` names the files that cannot be drawn.
    census: dict[str, object]


def families_by_name(families: Families) -> dict[str, list[str]]:
    """List who has an icon of each name."""
    owners: dict[str, list[str]] = defaultdict(list)
    for family, icons in families.items():
        for name in icons:
            owners[name].append(family)
    return owners


@contextmanager
def make_icon_set(families: Families, resvg: ModuleType, folder: Path) -> Iterator[IconSet]:
    """Draw all icons that two families or more have a name for, and make classes of them."""
    shared = _in_two_families(families)
    # A link and what it points to are one file.
    real = {file.path: str(Path(file.path).resolve()) for files in shared.values() for file in files.values()}
    paths = sorted(set(real.values()))
    with tempfile.TemporaryFile(dir=folder) as store:
        shape = (len(paths), 3, SIDE, SIDE)
        pixels: NDArray[np.uint8] = np.memmap(store, dtype=np.uint8, mode="w+", shape=shape)
        thumbnails, unreadable = _draw_all(paths, pixels, resvg)
        row = {path: number for number, path in enumerate(paths) if not is_blank(thumbnails[number])}
        files: dict[str, dict[str, int]] = defaultdict(dict)
        for family, icons in shared.items():
            for name, file in icons.items():
                if real[file.path] in row:
                    files[name][family] = row[real[file.path]]
        digests = [hashlib.sha256(drawing).digest() for drawing in pixels]
        number = find_copies(thumbnails, digests, [list(group.values()) for group in files.values()])
        drawings = {name: {family: number[file] for family, file in group.items()} for name, group in files.items()}
        joined = make_classes(drawings, join_names(drawings))
        classes = [icon for icon in joined if len(icon.samples) >= MIN_SAMPLES]
        census: dict[str, object] = {
            "families": {family: len(icons) for family, icons in families.items()},
            "names": len({name for icons in families.values() for name in icons}),
            "names by families": _count(len(icons) for icons in families_by_name(families).values()),
            "files drawn": len(paths),
            "unreadable": unreadable,
            "blank": len(paths) - len(row) - len(unreadable),
            **_census(drawings, classes),
        }
        yield IconSet(classes, [f"{_context(icon, shared)}/{icon.names[0]}" for icon in classes], pixels, census)


def _in_two_families(families: Families) -> Families:
    """Leave out the names that one family alone has: nothing can be joined with them, and nothing retrieved."""
    owners = families_by_name(families)
    return {
        family: {name: file for name, file in icons.items() if len(owners[name]) > 1}
        for family, icons in families.items()
    }


def _census(drawings: Mapping[str, Mapping[str, int]], classes: list[IconClass]) -> dict[str, object]:
    unjoined = make_classes(drawings, [(name,) for name in drawings])
    return {
        "classes before joining": _count(len(icon.samples) for icon in unjoined),
        "classes": _count(len(icon.samples) for icon in classes),
        "names joined": sum(len(icon.names) for icon in classes if len(icon.names) > 1),
        "classes of several names": sum(len(icon.names) > 1 for icon in classes),
        "pairs of names that share a drawing and are not joined": _count_apart(drawings, classes),
        "samples": sum(len(icon.samples) for icon in classes),
        "samples whose drawing is in another class too": count_ambiguous(classes),
    }


def _draw_all(paths: list[str], pixels: NDArray[np.uint8], resvg: ModuleType) -> tuple[NDArray[np.uint8], list[str]]:
    """Fill `pixels`; white where a file cannot be drawn."""
    thumbnails = np.empty((len(paths), 3, THUMBNAIL, THUMBNAIL), dtype=np.uint8)

    def one(number: int) -> str:
        drawing = draw(paths[number], resvg)
        pixels[number] = 255 if isinstance(drawing, str) else drawing
        thumbnails[number] = thumbnail(pixels[number])
        return drawing if isinstance(drawing, str) else ""

    with ThreadPoolExecutor() as pool:
        return thumbnails, [reason for reason in pool.map(one, range(len(paths))) if reason]


def _count(sizes: Iterable[int]) -> dict[str, int]:
    """How many are as large as each of `STEPS`; a key in JSON is a text."""
    counted = list(sizes)
    return {str(step): sum(size >= step for size in counted) for step in STEPS}


def _count_apart(drawings: Mapping[str, Mapping[str, int]], classes: list[IconClass]) -> int:
    """Pairs of names, both in the classes, that some family draws the same and that are not of one class."""
    owner = {name: number for number, icon in enumerate(classes) for name in icon.names}
    return sum(one in owner and other in owner and owner[one] != owner[other] for one, other in shared_names(drawings))


def _context(icon: IconClass, families: Families) -> str:
    """Kind of icon that most families take it for."""
    contexts = Counter(files[name].context for files in families.values() for name in icon.names if name in files)
    return min(contexts, key=lambda context: (context in _NO_CONTEXTS, -contexts[context], context)) or "other"
