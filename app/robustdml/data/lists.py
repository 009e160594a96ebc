"""Lists of images, with a label each, and perhaps a part."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from robustdml.data.dataset import Samples, numbered
from robustdml.data.image_files import ImageFiles
from robustdml.data.parts import PARTS, SPELLINGS, part_called
from robustdml.errors import UsageError, expanded, few, in_one_line
from robustdml.tables import SUFFIXES, TableOf, read_table

# Names that the columns have by themselves, the first that is there; capitals do not matter.
_PATHS = ("path", "file_name", "filename", "file", "image", "image_path", "filepath")
_LABELS = ("label", "class", "class_name", "category")
_SPLITS = ("part", "split", "subset")
# Lists that Hugging Face puts beside the images of a folder.
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_BY_PATTERN = "label by the pattern"
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a list, an empty one is found by itself; or where in a path the label is."""

    path: str = ""
    label: str = ""
    split: str = ""
    pattern: str = ""  # A regular expression, of which the first group is the label

    def label_in(self, name: str) -> str:
        """The label that a path has by the pattern, empty where it has none."""
        try:
            found = re.search(self.pattern, name.replace(os.sep, "/"))
        except re.error as error:
            raise UsageError(f"label pattern {self.pattern!r}: no regular expression ({error})") from error
        if found is None:
            return ""
        if not found.re.groups:
            raise UsageError(f"label pattern {self.pattern!r}: put round brackets around what is the label")
        return found[1] or ""


ANY_COLUMNS = Columns()
COLUMN_TEXTS = {
    "path": f"column of a list with the paths (default: {', '.join(_PATHS[:3])}, …)",
    "label": f"column of a list with the labels (default: {', '.join(_LABELS)})",
    "split": f"column of a list with train and test (default: {', '.join(_SPLITS)})",
}
PATTERN_TEXT = r"labels by the paths: a regular expression whose first group is the label, such as '([^/]+)_\d+\.jpg$'"
# For people.
LISTS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


def is_list(path: Path) -> bool:
    """Tell whether a file is a list, by its name."""
    return path.suffix.lower() in SUFFIXES


def read_list(path: Path, columns: Columns = ANY_COLUMNS, need_labels: bool = True) -> Samples:
    """Read the rows of a list that have both a path and a label; whether the images are there is not looked at.

    Where no labels are needed and no column has any, all rows with a path are read, and no class has a name.
    """
    table = read_table(path, "list of images")
    if not table.rows:
        raise UsageError(f"{path}: an empty list; expected a path and a label a line")
    of_path = _column(path, table, columns.path, _PATHS, "path", need=True)
    if columns.pattern and not columns.label:
        for _, row in table.rows:
            row[_BY_PATTERN] = columns.label_in(row[of_path])
        of_label = _BY_PATTERN
    else:
        of_label = _column(path, table, columns.label, _LABELS, "label", need=need_labels)
    needed = {"path": of_path, "label": of_label} if of_label else {"path": of_path}
    left_out: list[str] = []
    good: list[dict[str, str]] = []
    row_of: dict[str, int] = {}
    files: list[Path] = []
    real = cache(os.path.realpath)
    for number, (_, row) in enumerate(table.rows, 1):
        # What is not blank is kept as it is: files and class folders may have names with blanks around them.
        lacks = [name for name, column in needed.items() if not row[column].strip()]
        if lacks:
            left_out.append(f"row {number} of {path.name} (no {lacks[0]})")
            continue
        file = _file(path, number, row[of_path])
        same = os.path.join(real(file.parent), file.name) if "\0" not in str(file) else str(file)
        if row_of.setdefault(same, number) != number:
            raise UsageError(f"{path}: rows {row_of[same]} and {number} are of the same file, {file}; keep one")
        good.append(row)
        files.append(file)
    if not good:
        raise UsageError(f"{path}: no line has {' and '.join(f'a {name}' for name in needed)}")
    # Accents may be composed or not: such names are of one class.
    given = [unicodedata.normalize("NFC", row[of_label]) if of_label else "" for row in good]
    labels, names = numbered(given)
    parts, notes = _parts(path, table, columns, {of_path, of_label}, good)
    return Samples(
        ImageFiles(files),
        labels,
        names if of_label else (),
        list(map(str, files)),
        source=str(path),
        left_out=tuple(left_out),
        parts=parts,
        notes=tuple(notes),
    )


def metadata_of(folder: Path) -> Path | None:
    """The list that Hugging Face puts beside the images of a folder, if there is one."""
    return next((folder / name for name in _METADATA if (folder / name).is_file()), None)


def path_column(path: Path, columns: Sequence[str]) -> str:
    """Name of the column of paths among those of a table."""
    return _column(path, TableOf(list(columns), []), "", _PATHS, "path", need=True)


def _column(path: Path, table: TableOf, chosen: str, known: tuple[str, ...], what: str, need: bool) -> str:
    """Name of a column in the list: the one chosen, or the first that is known; empty where none is needed."""
    wanted = (chosen,) if chosen else known
    lower = {} if chosen else {name.lower(): name for name in reversed(table.columns)}
    found = next((lower.get(name, name) for name in wanted if name in lower or name in table.columns), "")
    if not found and (need or chosen):
        there = ", ".join(map(in_one_line, table.columns)) or "nothing"
        way_out = "" if chosen else f". Call it {what}, or name it by --{what}-column"
        raise UsageError(f"{path}: no column {chosen or what!r}; found {there}{way_out}")
    if table.columns.count(found) > 1:
        raise UsageError(f"{path}: {table.columns.count(found)} columns are called {found}; keep one")
    return found


def _file(path: Path, number: int, given: str) -> Path:
    """The file of a row; of names that are not there, spelt as they are on the disk."""
    if _ADDRESS.match(given):
        raise UsageError(f"{path}: row {number} is an address, {in_one_line(given)}; download it, and give its path")
    file = (path.parent / expanded(given)).absolute()
    if (given.isascii() and "\\" not in given) or "\0" in given or os.path.lexists(file):
        return file
    forms = (unicodedata.normalize(form, given) for form in ("NFC", "NFD"))
    others = [(path.parent / expanded(other.replace("\\", os.sep))).absolute() for other in (given, *forms)]
    return next((other for other in others if os.path.lexists(other)), file)


def _parts(
    path: Path, table: TableOf, columns: Columns, used: set[str], rows: list[dict[str, str]]
) -> tuple[tuple[str, ...], list[str]]:
    """The part of each row, or None, and notes on columns that look like one."""
    notes: list[str] = []
    for name in (columns.split,) if columns.split else dict.fromkeys((*_named(table, _SPLITS), *table.columns)):
        if name in used:
            continue
        _column(path, table, name, (), "split", need=True)
        values = Counter(row[name] for row in rows)
        found = {value: part_called(value) for value in values}
        if {*found.values()} == {*PARTS}:
            if name in (columns.split, *_named(table, _SPLITS)):
                return tuple(found[row[name]] for row in rows), notes
            notes.append(f"column {name} looks like a split, and is not used; --split-column {name} takes it")
            continue
        told = f"{path}: column {name} holds {few([repr(value) for value in values])}"
        # A column of that name may mean anything else; one that has both parts does not.
        if columns.split or (name in _named(table, _SPLITS) and _is_split({*found.values()})):
            raise UsageError(f"{told}; expected {SPELLINGS}. Take other rows out, or rename the column")
        if name in _named(table, _SPLITS) or (len(found) > 1 and all(found.values())):
            notes.append(f"column {name} is not used: {few([repr(value) for value in values])}")
    return (), notes


def _is_split(parts: set[str]) -> bool:
    """Whether a column with these parts divides the samples: it has all of PARTS, or more than one."""
    return {*PARTS} <= parts or len(parts - {""}) > 1


def _named(table: TableOf, known: tuple[str, ...]) -> list[str]:
    return [name for name in table.columns if name.lower() in known]
