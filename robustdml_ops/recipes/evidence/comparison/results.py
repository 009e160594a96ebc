"""The outcomes of all runs on one data set, by entry and noise."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from robustdml_ops.recipes.evidence.comparison.cells import Cell
from robustdml_ops.recipes.evidence.comparison.entries import Entry
from robustdml_ops.recipes.evidence.comparison.outcomes import read_outcome
from robustdml_ops.recipes.evidence.summary import Estimate, estimate
from robustdml_ops.recipes.untouched import untouched_title


class Results:
    """What the runs of a comparison came to on one data set.

    Parameters
    ----------
    outcomes : iterable
        Pairs of cell and outcome.
    """

    def __init__(self, outcomes: Iterable[tuple[Cell, dict[str, Any]]]) -> None:
        self._outcomes = list(outcomes)

    @classmethod
    def read(cls, cells: Sequence[Cell], folder: Path) -> "Results":
        """Take what is done.

        Parameters
        ----------
        cells : sequence of Cell
            All runs on one data set.
        folder : Path
            Of the comparison.

        Returns
        -------
        Results
            Without those that are missing.
        """
        read = ((cell, read_outcome(cell, folder)) for cell in cells)
        return cls((cell, outcome) for cell, outcome in read if outcome is not None)

    @property
    def entries(self) -> list[Entry]:
        """Rows, in the order of the runs."""
        return list(dict.fromkeys(cell.entry for cell, _ in self._outcomes if cell.in_table))

    @property
    def noises(self) -> list[str]:
        """Columns, in the order of the runs."""
        return list(dict.fromkeys(cell.noise for cell, _ in self._outcomes if cell.in_table))

    @property
    def beside_the_table(self) -> list[tuple[Entry, str]]:
        """What was run for a claim alone, entry and noise."""
        return list(dict.fromkeys((cell.entry, cell.noise) for cell, _ in self._outcomes if not cell.in_table))

    def untouched(self, key: str) -> float | None:
        """Look up a metric of the untouched features, which noise leaves alone.

        Parameters
        ----------
        key : str
            A metric.

        Returns
        -------
        float or None
            Of networks that start untrained, each seed from its own, the mean; None where no run has it.
        """
        found = {outcome["summary"].get("untouched", {}).get(key) for _, outcome in self._outcomes} - {None}
        return statistics.fmean(found) if found else None

    @property
    def untouched_title(self) -> str:
        """What the untouched features are called in tables."""
        return untouched_title(self._outcomes[0][0].common.backbone)

    def by_seed(self, entry: str, noise: str, key: str) -> dict[int, float]:
        """Look up the value of each seed.

        Parameters
        ----------
        entry, noise : str
            Row and column.
        key : str
            Of a run's summary.

        Returns
        -------
        dict
            Empty where nothing was run, or the method has no such value.
        """
        found = (
            (cell.seed, outcome["summary"].get(key))
            for cell, outcome in self._outcomes
            if (cell.entry.name, cell.noise) == (entry, noise)
        )
        return {seed: value for seed, value in found if value is not None}

    def values(self, entry: str, noise: str, key: str) -> list[float]:
        """Look up one value a seed.

        Parameters
        ----------
        entry, noise, key
            As in `by_seed`.

        Returns
        -------
        list of float
            In the order of the seeds.
        """
        return list(self.by_seed(entry, noise, key).values())

    def estimate(self, entry: str, noise: str, key: str) -> Estimate | None:
        """Mean and standard error over the seeds.

        Parameters
        ----------
        entry, noise, key
            As in `by_seed`.

        Returns
        -------
        Estimate or None
            None where there is no value.
        """
        return estimate(self.values(entry, noise, key))

    def as_json(self) -> list[dict[str, Any]]:
        """All runs, to be kept in one file.

        Returns
        -------
        list of dict
            Name, noise, seed and summary of each.
        """
        return [
            {"entry": cell.entry.name, "noise": cell.noise, "seed": cell.seed, **outcome}
            for cell, outcome in self._outcomes
        ]
