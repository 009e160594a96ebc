"""Average ranks over the data sets, and whether they are apart by more than chance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.statistics.paired import CONFIDENCE, Difference, mean_over_data
from experiments.statistics.suite import Suite


@dataclass(frozen=True)
class Ranks:
    """Ranks of the rows, 1 for the best."""

    names: tuple[str, ...]  # Of the rows
    by_data: NDArray[np.float64]  # Mean rank over the noises, (data sets, rows)
    cells: int  # In which all rows were ranked
    cells_left_out: int  # In which a row was not run

    @property
    def average(self) -> NDArray[np.float64]:
        """Over the data sets, each of which counts once, (rows,)."""
        averages: NDArray[np.float64] = self.by_data.mean(axis=0)
        return averages

    @property
    def order(self) -> list[int]:
        """Numbers of the rows, best first."""
        return [int(row) for row in np.argsort(self.average, kind="stable")]

    def interval(self, row: int) -> Difference:
        """Average rank of a row with its bootstrap interval over data sets."""
        return mean_over_data(self.by_data[:, row].tolist())

    def behind(self, row: int, other: int) -> Difference:
        """By how many ranks a row is behind another, with a bootstrap interval over data sets."""
        return mean_over_data((self.by_data[:, row] - self.by_data[:, other]).tolist())

    @property
    def friedman(self) -> float | None:
        """Probability of ranks so far apart if all rows were alike (Friedman); None for too few rows or data sets."""
        if self.by_data.shape[0] < 2 or len(self.names) < 3:
            return None
        # Where all rows are level in all data sets there is nothing that could be apart.
        ranks = stats.rankdata(self.by_data, axis=1)
        return float(stats.friedmanchisquare(*ranks.T).pvalue) if ranks.std() > 0 else 1.0

    @property
    def critical_difference(self) -> float:
        """How far two average ranks must be apart to differ at 5 % (Nemenyi), with the data sets as blocks.

        CD = q √(k(k+1)/6N) with k rows, N data sets and q the quantile of the studentized range over √2 (Demšar,
        "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006, section 3.2.2).
        """
        rows, blocks = len(self.names), self.by_data.shape[0]
        quantile = float(stats.studentized_range.ppf(CONFIDENCE, rows, np.inf)) / 2**0.5
        return float(quantile * (rows * (rows + 1) / (6 * blocks)) ** 0.5)


def rank(suite: Suite, key: str) -> Ranks | None:
    """Rank the rows in each data set under each noise by their means over the seeds; equal ones share a rank."""
    names = tuple(entry.name for entry in suite.entries)
    means = suite.means(names, key)
    if len(names) < 2 or not means:
        return None
    by_data = [stats.rankdata(-values, axis=1).mean(axis=0) for values in means.values()]
    cells = sum(len(values) for values in means.values())
    return Ranks(names, np.array(by_data), cells, len(list(suite.cells())) - cells)
