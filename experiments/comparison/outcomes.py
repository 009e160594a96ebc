"""Files with the outcomes of runs, in a folder for each data set."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.comparison.cells import Cell, data_folder, plain
from robustdml.cache import write_text
from robustdml.errors import UsageError


def write_outcome(cell: Cell, folder: Path, outcome: dict[str, Any]) -> None:
    """Write the outcome of a run."""
    write_text(cell.path(folder), json.dumps(outcome, indent=1) + "\n")


def read_outcome(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """Read the outcome of a run; None where it has not been run."""
    path = cell.path(folder)
    if not path.exists():
        return None
    try:
        outcome: dict[str, Any] = json.loads(path.read_text())
        changes = cell.config.differences(outcome["settings"])
        if outcome["settings"]["epochs"] != cell.config.epochs:
            changes.append(f"epochs: {outcome['settings']['epochs']} then, {cell.config.epochs} now")
        if outcome["data"] != cell.data:
            changes.append(f"data: {outcome['data']} then, {cell.data} now")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no outcome of a comparison ({error!r}): delete it to run it again") from error
    if changes:
        raise UsageError(f"{path} is of other settings: delete it, or give another --out. {'; '.join(changes)}")
    return outcome


def outcomes_of(folder: Path, data: str, noise: str) -> Iterator[Path]:
    """Outcomes of a data set under a noise."""
    return data_folder(folder, data).glob(f"*__{plain(noise)}__seed*.json")


def check_outcomes(folder: Path) -> None:
    """Raise if an outcome lies outside the folders of data sets, where nothing reads it."""
    stray = sorted((folder / "cells").glob("*.json"))
    if stray:
        raise UsageError(
            f"{folder / 'cells'} holds {len(stray)} outcomes beside the folders of the data sets, such as "
            f'{stray[0].name}: move each into the folder of the data set that it names under "data", such as '
            f"{folder / 'cells' / 'glyphs'}, or give another --out"
        )
