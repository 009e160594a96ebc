"""One run of the comparison: what it is, and the file that holds its outcome."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robustdml_ops.recipes.cache import write_text
from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import RetrievalData
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.evidence.comparison.entries import Entry
from robustdml_ops.recipes.train import train


@dataclass(frozen=True)
class Cell:
    """A row of the table, a column and a seed.

    Attributes
    ----------
    entry : Entry
        The method with its settings.
    noise : str
        As ``robustdml train`` takes it.
    seed : int
        Of initialisation, batches and noise.
    epochs : int
        Of the run.
    in_table : bool
        Whether it is of the table, or run for a claim alone.
    """

    entry: Entry
    noise: str
    seed: int
    epochs: int
    in_table: bool = field(default=True, compare=False)

    @property
    def config(self) -> TrainingConfig:
        """Settings of the run."""
        base = TrainingConfig(**self.entry.settings)
        return replace(base, noise=self.noise, seed=self.seed, epochs=self.epochs)

    def path(self, folder: Path) -> Path:
        """Where its outcome is kept.

        Parameters
        ----------
        folder : Path
            Of the comparison.

        Returns
        -------
        Path
            A JSON file.
        """
        return folder / "cells" / f"{self.entry.name}__{re.sub('[^a-z0-9.-]', '-', self.noise)}__seed{self.seed}.json"

    def run(self, data: RetrievalData, device: str) -> dict[str, Any]:
        """Train, and return what is kept.

        Parameters
        ----------
        data : RetrievalData
            What to train on.
        device : str
            As in `train`.

        Returns
        -------
        dict
            ``settings``, ``summary`` and ``recall_by_epoch``, numbers and texts alone.
        """
        result = train(self.config, data, device=device)
        return {
            "settings": self.config.as_dict(),
            "data": data.name,
            "summary": result.summary,
            "recall_by_epoch": [record["precision_at_1"] for record in result.history],
        }


def write_outcome(cell: Cell, folder: Path, outcome: dict[str, Any]) -> None:
    """Keep the outcome of a run.

    Parameters
    ----------
    cell : Cell
        Which run.
    folder : Path
        Of the comparison.
    outcome : dict
        From `Cell.run`.
    """
    write_text(cell.path(folder), json.dumps(outcome, indent=1) + "\n")


def read_outcome(cell: Cell, folder: Path, data_name: str) -> dict[str, Any] | None:
    """Read the outcome of a run that is done.

    Parameters
    ----------
    cell : Cell
        Which run.
    folder : Path
        Of the comparison.
    data_name : str
        What it is to have been trained on.

    Returns
    -------
    dict or None
        From `Cell.run`; None where it is still to be done.

    Raises
    ------
    UsageError
        The file is of a run with other settings, or unreadable.
    """
    path = cell.path(folder)
    if not path.exists():
        return None
    try:
        outcome: dict[str, Any] = json.loads(path.read_text())
        changes = cell.config.differences(outcome["settings"])
        if outcome["settings"]["epochs"] != cell.epochs:
            changes.append(f"epochs: {outcome['settings']['epochs']} then, {cell.epochs} now")
        if outcome["data"] != data_name:
            changes.append(f"data: {outcome['data']} then, {data_name} now")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no outcome of a comparison ({error!r}): delete it to run it again") from error
    if changes:
        raise UsageError(f"{path} is of other settings: delete it, or give another --out. {'; '.join(changes)}")
    return outcome


def all_cells(entries: Sequence[Entry], noises: Sequence[str], seeds: int, epochs: int) -> list[Cell]:
    """Every run of a comparison, seed after seed, so that a comparison that was stopped has whole columns.

    Parameters
    ----------
    entries : sequence of Entry
        Rows.
    noises : sequence of str
        Columns.
    seeds : int
        Runs of each, from seed 0.
    epochs : int
        Of each run.

    Returns
    -------
    list of Cell
        In the order in which they are run.
    """
    return [Cell(entry, noise, seed, epochs) for seed in range(seeds) for noise in noises for entry in entries]
