"""Average ranks over data sets, with tests of their differences."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.statistics.paired import CONFIDENCE, Difference, mean_over_data
from experiments.statistics.suite import Suite


@dataclass(frozen=True)
class Ranks:
    """Ranks of the methods; 1 is the best."""

    names: tuple[str, ...]  # Of the methods
    by_data: NDArray[np.float64]  # Mean rank over the noises, (data sets, methods)
    cells: int  # Cells where all methods were run
    cells_left_out: int  # Cells where a method is missing

    @property
    def average(self) -> NDArray[np.float64]:
        """Average over the data sets, (methods,)."""
        averages: NDArray[np.float64] = self.by_data.mean(axis=0)
        return averages

    @property
    def order(self) -> list[int]:
        """Numbers of the methods, best first."""
        return [int(row) for row in np.argsort(self.average, kind="stable")]

    def interval(self, row: int) -> Difference:
        """Average rank of a method with its bootstrap interval."""
        return mean_over_data(self.by_data[:, row].tolist())

    def behind(self, row: int, other: int) -> Difference:
        """Difference of two average ranks with its bootstrap interval."""
        return mean_over_data((self.by_data[:, row] - self.by_data[:, other]).tolist())

    @property
    def friedman(self) -> float | None:
        """p-value of Friedman's test; None below three methods or two data sets."""
        if self.by_data.shape[0] < 2 or len(self.names) < 3:
            return None
        # scipy divides by zero where all methods tie in all data sets.
        ranks = stats.rankdata(self.by_data, axis=1)
        return float(stats.friedmanchisquare(*ranks.T).pvalue) if ranks.std() > 0 else 1.0

    @property
    def critical_difference(self) -> float:
        """Least difference of two average ranks that is significant at 5 % (Nemenyi).

        CD = q √(k(k+1)/6N) with k methods, N data sets and q the quantile of the studentized range over √2 (Demšar,
        "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006, section 3.2.2).
        """
        rows, blocks = len(self.names), self.by_data.shape[0]
        quantile = float(stats.studentized_range.ppf(CONFIDENCE, rows, np.inf)) / 2**0.5
        return float(quantile * (rows * (rows + 1) / (6 * blocks)) ** 0.5)


def rank(suite: Suite, key: str) -> Ranks | None:
    """Rank the methods in each cell by their means over the seeds; ties get their mean rank."""
    names = tuple(entry.name for entry in suite.entries)
    means = suite.means(names, key)
    if len(names) < 2 or not means:
        return None
    by_data = [stats.rankdata(-values, axis=1).mean(axis=0) for values in means.values()]
    cells = sum(len(values) for values in means.values())
    return Ranks(names, np.array(by_data), cells, len(list(suite.cells())) - cells)
