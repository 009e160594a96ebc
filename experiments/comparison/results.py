"""The outcomes of all runs on one data set, by entry and noise."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.comparison.cells import Cell
from experiments.comparison.entries import Entry
from experiments.comparison.outcomes import read_outcome
from experiments.summary import Estimate, estimate
from robustdml.evaluation import untouched_title


class Results:
    """Outcomes of a comparison on one data set."""

    def __init__(self, outcomes: Iterable[tuple[Cell, dict[str, Any]]]) -> None:
        self._outcomes = list(outcomes)

    @classmethod
    def read(cls, cells: Sequence[Cell], folder: Path) -> "Results":
        """Read the outcomes of all cells that have been run."""
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
        """Entries and noises that were run only for a claim."""
        return list(dict.fromkeys((cell.entry, cell.noise) for cell, _ in self._outcomes if not cell.in_table))

    def untouched(self, key: str) -> float | None:
        """A metric of the untouched features, which does not depend on the noise."""
        found = {outcome["summary"].get("untouched", {}).get(key) for _, outcome in self._outcomes} - {None}
        return statistics.fmean(found) if found else None

    @property
    def untouched_title(self) -> str:
        """Title of the untouched features in tables."""
        return untouched_title(self._outcomes[0][0].common.backbone)

    def by_seed(self, entry: str, noise: str, key: str) -> dict[int, float]:
        """Value of a quantity by seed."""
        found = (
            (cell.seed, outcome["summary"].get(key))
            for cell, outcome in self._outcomes
            if (cell.entry.name, cell.noise) == (entry, noise)
        )
        return {seed: value for seed, value in found if value is not None}

    def values(self, entry: str, noise: str, key: str) -> list[float]:
        """Values of a quantity, one a seed."""
        return list(self.by_seed(entry, noise, key).values())

    def estimate(self, entry: str, noise: str, key: str) -> Estimate | None:
        """Mean and standard error over the seeds."""
        return estimate(self.values(entry, noise, key))

    def as_json(self) -> list[dict[str, Any]]:
        """All runs, for one file."""
        return [
            {"entry": cell.entry.name, "noise": cell.noise, "seed": cell.seed, **outcome}
            for cell, outcome in self._outcomes
        ]
