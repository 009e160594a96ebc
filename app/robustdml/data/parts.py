"""Training and test parts, by the names that people give them; and folders around the folder that is meant."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from robustdml.data.files import PassedOver, loose_images, visible_folders
from robustdml.errors import UsageError

PARTS = TRAIN, TEST = "train", "test"  # Folders that hold class folders each
_VALIDATION = "val"
_WORDS = dict.fromkeys(("train", "training", "trainset"), TRAIN)
_WORDS |= dict.fromkeys(("test", "testing", "testset"), TEST)
_WORDS |= dict.fromkeys(("val", "valid", "validation", "dev"), _VALIDATION)
SPELLINGS = "train (training, Train, …) and test (testing, Test, …)"


def part_called(name: str) -> str:
    """The part that a whole name stands for, ``train``, ``test`` or ``val``; empty where it is no such name."""
    return _WORDS.get(name.strip().lower(), "")


def _part_within(name: str) -> tuple[str, str]:
    """The part that one word of a name stands for, and the rest of the name: ``seg_train`` is train of ``seg_``."""
    words = re.findall(r"[A-Za-z]+", name)
    found = [word for word in words if part_called(word)]
    return (part_called(found[0]), name.replace(found[0], "", 1)) if len(found) == 1 else ("", name)


def find_parts(folder: Path, found: list[Path]) -> dict[str, Path]:
    """The training and the test part among the folders in a folder, if there are such parts.

    Refuse folders that look like parts and are not one of each.
    """
    for reading in (_whole_names, _within_names):
        by_part = reading(found)
        if [len(by_part.get(part, ())) for part in PARTS] == [1, 1]:
            return {part: by_part[part][0] for part in PARTS}
    alike = [_part_within(entry.name) for entry in found]
    roles, rests = {part for part, _ in alike}, {rest for _, rest in alike}
    names = ", ".join(entry.name for entry in found)
    if found and "" not in roles and (rests == {""} or (len(roles) > 1 and len(rests) == 1)):
        raise UsageError(
            f"{folder}: the folders in it look like parts, not classes: {names}; call them train and test, or give one "
            "of them"
        )
    if shared := _shared_subfolders(found):
        raise UsageError(
            f"{folder}: the folders in it look like parts, not classes, for each holds the same folders "
            f"({', '.join(shared[:3])}{', …' if len(shared) > 3 else ''}): {names}; call two of them train and test, "
            "give one of them, or a list with the columns path and label"
        )
    return {}


def _grouped(found: Iterable[Path], part: Callable[[Path], str]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for entry in found:
        groups.setdefault(part(entry), []).append(entry)
    return groups


def _whole_names(found: list[Path]) -> dict[str, list[Path]]:
    return _grouped(found, lambda entry: part_called(entry.name))


def _within_names(found: list[Path]) -> dict[str, list[Path]]:
    """Only where the names are alike but for the word: a class may be called `test tube`."""
    groups = _grouped(found, lambda entry: _part_within(entry.name)[0])
    rests = {_part_within(entry.name)[1] for part in PARTS for entry in groups.get(part, ())}
    return groups if len(rests) == 1 else {}


def _shared_subfolders(found: list[Path]) -> list[str]:
    """Names of the folders that all of several folders hold, two or more; none where they differ."""
    first: list[str] = []
    for entry in found if len(found) > 1 else ():
        names = [one.name for one in visible_folders(without_wrapper(entry))]
        if len(names) < 2 or (first and names != first):
            return []
        first = names
    return first


def without_wrapper(folder: Path) -> Path:
    """The folder of class folders that others are around, each with nothing else in it; or the folder itself."""
    inner, found = folder, visible_folders(folder)
    while len(found) == 1 and not (found[0].is_symlink() or part_called(found[0].name)):
        if loose_images(inner, PassedOver()):
            return folder
        inner = found[0]
        found = visible_folders(inner)
    return inner if len(found) > 1 and (inner == folder or not loose_images(inner, PassedOver())) else folder
