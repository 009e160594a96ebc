"""One run of the comparison: what it is, and what it leaves."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import RetrievalData
from robustdml_ops.recipes.evidence.comparison.entries import Entry
from robustdml_ops.recipes.filters.filter import KEPT
from robustdml_ops.recipes.filters.options import NO_FILTER
from robustdml_ops.recipes.train import TrainingResult, train

# Samples from which a class is large enough for a filter to be held to what it rejects of right labels.
LARGE_CLASS = 20


@dataclass(frozen=True)
class Cell:
    """A data set, a row of its table, a column and a seed.

    Attributes
    ----------
    data : str
        Name of the data set.
    entry : Entry
        The method with its settings.
    noise : str
        As ``robustdml train`` takes it.
    seed : int
        Of initialisation, batches and noise.
    common : TrainingConfig
        Settings that all runs of the comparison share, such as the number of epochs.
    in_table : bool
        Whether it is of the table, or run for a claim alone.
    """

    data: str
    entry: Entry
    noise: str
    seed: int
    common: TrainingConfig = field(compare=False)
    in_table: bool = field(default=True, compare=False)

    @property
    def title(self) -> str:
        """What people are told of it."""
        return f"{self.data}, {self.entry.name}, {self.noise}, seed {self.seed}"

    @property
    def config(self) -> TrainingConfig:
        """Settings of the run."""
        return replace(self.common, **self.entry.settings, noise=self.noise, seed=self.seed)

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
        return data_folder(folder, self.data) / f"{self.entry.name}__{plain(self.noise)}__seed{self.seed}.json"

    def run(self, data: RetrievalData, untouched: dict[str, float] | None, device: str) -> dict[str, Any]:
        """Train, and return what is kept.

        Parameters
        ----------
        data : RetrievalData
            What to train on.
        untouched : dict or None
            Metrics of its features as they are; None for the run to find them.
        device : str
            As in `train`.

        Returns
        -------
        dict
            ``settings``, ``data``, ``summary`` and the ``seconds`` that all of it took, numbers and texts alone.
        """
        start = time.perf_counter()
        result = train(self.config, data, device=device, untouched=untouched, evaluate_each_epoch=False)
        return {
            "settings": self.config.as_dict(),
            "data": data.name,
            "summary": result.summary | {"right_rejected": _right_rejected(result, data)},
            "seconds": time.perf_counter() - start,
        }


def all_cells(
    noises: Mapping[str, Sequence[str]], entries: Sequence[Entry], seeds: int, common: TrainingConfig
) -> list[Cell]:
    """Every run of a comparison, seed after seed, so that a comparison that was stopped has whole columns.

    Parameters
    ----------
    noises : mapping
        Columns of each data set.
    entries : sequence of Entry
        Rows.
    seeds : int
        Runs of each, from seed 0.
    common : TrainingConfig
        Settings that all runs share.

    Returns
    -------
    list of Cell
        In the order in which they are run.
    """
    return [
        Cell(data, entry, noise, seed, common)
        for seed in range(seeds)
        for data, columns in noises.items()
        for noise in columns
        for entry in entries
    ]


def data_folder(folder: Path, data: str) -> Path:
    """Where the outcomes of a data set are kept.

    Parameters
    ----------
    folder : Path
        Of the comparison.
    data : str
        Name of the data set.

    Returns
    -------
    Path
        A folder.
    """
    return folder / "cells" / plain(data)


def plain(text: str) -> str:
    """Make a name of a file from a text.

    Parameters
    ----------
    text : str
        Such as a kind of noise with its rate.

    Returns
    -------
    str
        Letters, digits, ``.``, ``-`` and ``_``.

    Examples
    --------
    >>> plain("symmetric:0.5")
    'symmetric-0.5'
    """
    return re.sub(r"[^\w.-]", "-", text).lstrip(".") or "data"


def _right_rejected(result: TrainingResult, data: RetrievalData) -> float | None:
    """Share of the right labels of large classes that the filter kept out of the last epoch."""
    kept = result.scores.get(KEPT)
    if kept is None and result.config.filter_options.kind != NO_FILTER:
        # There was a choice, and it fell on no filter.
        kept = np.ones(len(result.changed), dtype=np.float32)
    large = np.bincount(data.train.labels)[data.train.labels] >= LARGE_CLASS
    judged = large & ~result.changed & (False if kept is None else ~np.isnan(kept))
    return None if kept is None or not judged.any() else float(1 - kept[judged].mean())
