"""Results as lines of JSON: each is whole by itself, and on disk as soon as it is known."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

RESULTS, LOG, MACHINE, STARTED = "results.jsonl", "log.txt", "machine.json", "started.json"
# Of a row: measured; a check that failed; what is not there and why; no time; no memory; an exception.
OK, FAILED, ABSENT, NOT_RUN, NO_MEMORY, ERROR = "ok", "failed", "absent", "not run", "out of memory", "error"
KEY = ("section", "name", "shape", "dtype", "variant")


def append(out: Path, row: dict[str, Any]) -> None:
    """Add a row to the results in ``out``."""
    with (out / RESULTS).open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """All rows of a file, or of the results in a folder; of rows of the same name the last one."""
    file = path / RESULTS if path.is_dir() else path
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        row = json.loads(line)
        found.pop(key(row), None)
        found[key(row)] = row
    return list(found.values())


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """What tells a row from the others of a run."""
    return tuple(json.dumps(row.get(part), sort_keys=True) for part in KEY)


def of_section(rows: Iterable[dict[str, Any]], letter: str, *statuses: str) -> Iterator[dict[str, Any]]:
    """Rows of a section, of any status or of those named."""
    return (row for row in rows if row["section"] == letter and (not statuses or row["status"] in statuses))
