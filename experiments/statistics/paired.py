"""Differences of two methods, paired by seed: the same noise and the same batches."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """Mean difference of two methods with its 95 % interval."""

    mean: float  # Of the pairs
    low: float | None = None  # Ends of the interval; None for a single pair
    high: float | None = None

    @property
    def verdict(self) -> str:
        """``above``, ``below``, or ``undecided`` if the interval contains 0 or is missing."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "undecided"
        return "above" if self.low > 0 else "below"

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        return f"{100 * self.mean:+.1f}{interval}"


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Mean difference of two methods, with Student's t interval over the seeds that both have.

    Examples
    --------
    >>> str(paired_difference({0: 0.92, 1: 0.94}, {0: 0.90, 1: 0.91}))
    '+2.5 [-3.9, +8.9]'
    """
    pairs = [first[seed] - second[seed] for seed in first if seed in second]
    if not pairs:
        return None
    mean = statistics.fmean(pairs)
    if len(pairs) == 1:
        return Difference(mean)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(pairs) - 1))
    half_width = quantile * statistics.stdev(pairs) / len(pairs) ** 0.5
    return Difference(mean, mean - half_width, mean + half_width)


def mean_over_data(values: Sequence[float]) -> Difference:
    """Mean over data sets with a bootstrap interval over data sets: cells of one data set are dependent."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Difference(mean)
    interval = stats.bootstrap(
        (np.asarray(values),), np.mean, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Difference(mean, float(interval.low), float(interval.high))
