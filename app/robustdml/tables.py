"""Tables of texts as people save them: of any separator and encoding, as .csv, .tsv, .jsonl or .parquet."""

import codecs
import csv
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from robustdml.cache import NAMES, kept_folder, make_private, write_text, write_whole
from robustdml.errors import UsageError, reason_of, say
from robustdml.plain_files import check_plain

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
_DELIMITERS = ",;\t|"  # semicolons where the decimal mark is a comma
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_ARCHIVE = b"PK"


class TableOf(NamedTuple):
    """The columns of a table, and its rows, each with the number of its line."""

    columns: list[str]
    rows: list[tuple[int, dict[str, str]]]  # A value that is missing is empty


def read_table(path: Path, kind: str, own: Sequence[str] = ()) -> TableOf:
    """Read a table by the suffix of its file; ``own``: the columns of one that :func:`write_csv` has written."""
    check_plain(path, kind)
    try:
        if path.suffix.lower() == ".parquet":
            return _parquet(path)
        text = _text(path, kind, path.read_bytes(), ",".join(own))
        return _of_objects(path, text) if path.suffix.lower() == ".jsonl" else _separated(path, text)
    except (OSError, csv.Error) as error:
        raise UsageError(f"{path}: not a readable {kind} ({reason_of(error)})") from error


def _text(path: Path, kind: str, content: bytes, own: str) -> str:
    """Decode UTF-8, UTF-16 with its mark, or else Windows-1252, and say so; raw names of files stay as they are."""
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, NAMES if encoding == "utf-8" else "replace")
    if content.startswith(_ARCHIVE):
        raise UsageError(f"{path}: a workbook or an archive, not a {kind}; save it as CSV in UTF-8")
    if b"\0" in content.split(b"\n", 1)[0]:
        raise UsageError(f"{path}: not a {kind} in UTF-8; save it as one")
    text = content.decode("utf-8", NAMES)
    if text.isascii() or not re.search("[\udc80-\udcff]", text):
        return text
    # Characters beside them that are well-formed UTF-8 are no accident: the rest are names of files, of any bytes.
    if re.search("[^\x00-\x7f\udc80-\udcff]", text) or (own and text.startswith(own)):
        return text
    raw = (value for value in re.split(f"[{_DELIMITERS}\n]", text) if re.search("[\udc80-\udcff]", value))
    if any(os.path.lexists(path.parent / value.strip().strip('"')) for value in raw):
        return text
    try:
        decoded = content.decode("cp1252")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: neither in UTF-8 nor in Windows-1252 ({error}); save it in UTF-8") from error
    say(f"robustdml: {path} is not in UTF-8, and read as Windows-1252", sys.stderr)
    return decoded


def _separated(path: Path, text: str) -> TableOf:
    """Read separated values: a line ``sep=;`` names the separator, or it is the one that the first line has most."""
    head, _, rest = text.partition("\n")
    named = re.fullmatch(r'"?sep=(.)"?\r?', head)
    text, head = (rest, rest.partition("\n")[0]) if named else (text, head)
    delimiter = named[1] if named else max(_DELIMITERS, key=head.count)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restval="")
    reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
    rows: list[tuple[int, dict[Any, Any]]] = [(reader.line_num + bool(named), row) for row in reader]
    longer = next((line for line, row in rows if None in row), None)
    if longer is not None:
        raise UsageError(f'{path}, line {longer}: more values than columns; put quotes (") around one with a delimiter')
    return TableOf(list(reader.fieldnames), rows)


def _of_objects(path: Path, text: str) -> TableOf:
    """Read an object of JSON a line."""
    rows = []
    for line, one in enumerate(text.split("\n"), 1):
        try:
            row = json.loads(one) if one.strip() else {}
            if not isinstance(row, dict):
                raise ValueError(f"a {type(row).__name__}, and an object is expected")
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {line}: not JSON ({reason_of(error)})") from error
        if row:
            rows.append((line, row))
    columns = list(dict.fromkeys(name for _, row in rows for name in row))
    return TableOf(columns, [(line, {name: _as_text(row.get(name)) for name in columns}) for line, row in rows])


def open_parquet(path: Path) -> Any:
    """Read a Parquet file with pyarrow."""
    check_plain(path, "table")
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(f"{path}: reading .parquet needs a package: pip install pyarrow") from error
    try:
        return parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a readable .parquet file ({error})") from error


def _parquet(path: Path) -> TableOf:
    table = open_parquet(path)
    columns: dict[str, list[str]] = {}
    for name in table.column_names:
        values, kind = table[name].to_pylist(), str(table.schema.field(name).type)
        if name.lower() in _PICTURES and kind.startswith(("struct", "binary", "large_binary")):
            columns[name] = _unpacked(path, values)
        elif not kind.startswith(_NO_TEXTS):
            columns[name] = _named(table.schema, name, list(map(_as_text, values)))
    rows = zip(*columns.values(), strict=True)
    return TableOf([*columns], [(line, dict(zip(columns, row, strict=True))) for line, row in enumerate(rows, 1)])


_NO_TEXTS = ("struct", "list", "large_list", "binary", "large_binary", "fixed_size", "map")
# Columns of pictures within a file, as Hugging Face has them: bytes, or bytes and a name.
_PICTURES = ("image", "img", "picture", "photo")


def _unpacked(path: Path, values: list[Any]) -> list[str]:
    """Put pictures of a file into the cache folder, and give their files; those that are there stay."""
    folder = kept_folder() / "unpacked" / hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:16]
    make_private(folder)
    files = []
    for number, value in enumerate(values):
        content, name = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if content is None:
            files.append(str(name or ""))
            continue
        # By its content, so that a changed file leaves no old picture under a new row.
        mark = hashlib.blake2b(content, digest_size=8).hexdigest()
        file = folder / f"{number:07}-{mark}{Path(str(name or '')).suffix[:8]}"
        if not file.exists():
            write_whole(file, partial(_write_all, content))
        files.append(str(file))
    say(f"robustdml: the pictures of {path} are in {folder}", sys.stderr)
    return files


def _write_all(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _named(schema: Any, column: str, values: list[str]) -> list[str]:
    """Names for the numbers of classes, where Hugging Face's description of the table has any."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError):
        return values
    return [str(names[int(one)]) if one.isdigit() and int(one) < len(names) else one for one in values]


def _as_text(value: object) -> str:
    """A value of a typed table; numbers of a column with gaps are stored as fractions, and gaps as NaN."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows, the names of the columns first."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    write_text(path, out.getvalue())
