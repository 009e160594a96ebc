"""One run of the comparison, and its outcome."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import experiments.noise  # noqa: F401  (adds noise models)
from experiments.comparison.entries import Entry
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.evaluation import JUDGED
from robustdml.filters.filter import KEPT
from robustdml.networks.models import apply_in_batches
from robustdml.noise import with_wrong_labels
from robustdml.retrieval import retrieval_metrics
from robustdml.run.result import TrainingResult
from robustdml.train import train

# Rejected right labels are counted in classes of at least so many samples.
LARGE_CLASS = 20
# Ends of the names of metrics by wrong test labels: after training, and of the untouched features.
AS_GIVEN, UNTOUCHED_AS_GIVEN = "_as_given", "_untouched_as_given"


@dataclass(frozen=True)
class Cell:
    """A run: data set, entry, noise and seed."""

    data: str  # Name of the data set
    entry: Entry  # The method with its settings
    noise: str  # As `robustdml train` takes it
    seed: int  # Of initialisation, batches and noise
    # Settings that all runs of the comparison share, such as the number of epochs.
    common: TrainingConfig = field(compare=False)
    in_table: bool = field(default=True, compare=False)  # False: run only for a claim

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"{self.data}, {self.entry.name}, {self.noise}, seed {self.seed}"

    @property
    def config(self) -> TrainingConfig:
        """Settings of the run."""
        return replace(self.common, **self.entry.settings, seed=self.seed)

    def path(self, folder: Path) -> Path:
        """File of its outcome."""
        return data_folder(folder, self.data) / f"{self.entry.name}__{plain(self.noise)}__seed{self.seed}.json"

    def run(self, data: RetrievalData, untouched: dict[str, float] | None, device: str) -> dict[str, Any]:
        """Train, and return the outcome."""
        start = time.perf_counter()
        noisy = with_wrong_labels(data, self.noise, self.seed)
        result = train(self.config, noisy, device=device, untouched=untouched, evaluate_each_epoch=False)
        return {
            "settings": self.config.as_dict(),
            "data": data.name,
            "seconds": time.perf_counter() - start,  # without what follows
            "summary": result.summary
            | {"right_rejected": _right_rejected(result, data)}
            | _by_wrong_test_labels(result, data, self.noise, self.seed),
        }


def all_cells(
    noises: Mapping[str, Sequence[str]], entries: Sequence[Entry], seeds: int, common: TrainingConfig
) -> list[Cell]:
    """All runs of a comparison, ordered by seed: an interrupted comparison has complete columns."""
    return [
        Cell(data, entry, noise, seed, common)
        for seed in range(seeds)
        for data, columns in noises.items()
        for noise in columns
        for entry in entries
    ]


def data_folder(folder: Path, data: str) -> Path:
    """Folder of the outcomes of a data set."""
    return folder / "cells" / plain(data)


def plain(text: str) -> str:
    """A file name made from a text.

    Examples
    --------
    >>> plain("symmetric:0.5")
    'symmetric-0.5'
    """
    return re.sub(r"[^\w.-]", "-", text).lstrip(".") or "data"


def _by_wrong_test_labels(result: TrainingResult, data: RetrievalData, noise: str, seed: int) -> dict[str, float]:
    """Recall@1 and MAP@R by test labels that are wrong as those of training are; of features alone."""
    test = data.test
    if test.is_images:
        return {}
    labels = with_wrong_labels(replace(data, train=test), noise, seed).train.labels
    device = next(result.embedder.parameters(), torch.empty(0)).device
    trained = apply_in_batches(result.embedder, test.inputs, device)
    found = {AS_GIVEN: trained, UNTOUCHED_AS_GIVEN: np.asarray(test.inputs)}
    metrics = {end: retrieval_metrics(rows, labels) for end, rows in found.items()}
    return {key + end: metrics[end][key] for end in found for key in JUDGED}


def _right_rejected(result: TrainingResult, data: RetrievalData) -> float | None:
    """Fraction of right labels in large classes that the filter rejected in the last epoch; None without a filter."""
    kept = result.scores.get(KEPT)
    large = np.bincount(data.train.labels)[data.train.labels] >= LARGE_CLASS
    judged = large & ~result.changed & (False if kept is None else ~np.isnan(kept))
    return None if kept is None or not judged.any() else float(1 - kept[judged].mean())
