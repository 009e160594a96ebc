"""Outcomes on all data sets, for the statistics."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.comparison.entries import Entry
from experiments.comparison.results import Results

# The method that is compared with all others.
FOCUS = "robust"


def set_of(data: str) -> str:
    """Name of the set of which ``data``, as ``vowels-10``, is a half or a drawing: these count once."""
    return re.sub(r"-\d+$", "", data)


@dataclass(frozen=True)
class Suite:
    """Results of several data sets."""

    results: Mapping[str, Results]  # By name of the data set

    @property
    def entries(self) -> list[Entry]:
        """All entries, in the order of the runs."""
        return list(dict.fromkeys(entry for results in self.results.values() for entry in results.entries))

    @property
    def focus(self) -> Entry | None:
        """The entry of `FOCUS`; None if it was not run."""
        return next((entry for entry in self.entries if entry.name == FOCUS), None)

    @property
    def others(self) -> list[Entry]:
        """All entries but `FOCUS`."""
        return [entry for entry in self.entries if entry.name != FOCUS]

    def cells(self) -> Iterator[tuple[str, str]]:
        """All cells: data set and noise."""
        for data, results in self.results.items():
            for noise in results.noises:
                yield data, noise

    def mean(self, data: str, entry: str, noise: str, key: str) -> float | None:
        """Mean of a quantity over the seeds; None where nothing was run."""
        values = self.results[data].values(entry, noise, key)
        return statistics.fmean(values) if values else None

    def means(self, names: Sequence[str], key: str) -> dict[str, NDArray[np.float64]]:
        """Means over the seeds by data set, (noises, names), for cells where all entries were run."""
        found: dict[str, list[list[float]]] = {}
        for data, noise in self.cells():
            values = [self.mean(data, name, noise, key) for name in names]
            known = [value for value in values if value is not None]
            if len(known) == len(names):
                found.setdefault(set_of(data), []).append(known)
        return {data: np.array(rows) for data, rows in found.items()}
