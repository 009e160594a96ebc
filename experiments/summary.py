"""Means and standard errors over seeds, and their comparison."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """Mean of several runs and its standard error."""

    mean: float  # Of the values
    error: float | None  # Standard error of the mean; None for one value

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.error is None else f"{self.mean:.3f} ± {self.error:.3f}"


def estimate(values: Sequence[float]) -> Estimate | None:
    """Summarise the values of several seeds.

    Examples
    --------
    >>> str(estimate([0.5, 0.7]))
    '0.600 ± 0.100'
    """
    if not values:
        return None
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return Estimate(statistics.fmean(values), error)


def compare(first: Estimate, second: Estimate) -> str:
    """``above`` or ``below`` from twice the standard error of the difference on, else ``equal``.

    Examples
    --------
    >>> compare(Estimate(0.8, 0.01), Estimate(0.7, 0.01)), compare(Estimate(0.71, 0.01), Estimate(0.7, 0.01))
    ('above', 'equal')
    """
    difference = first.mean - second.mean
    error = 2 * ((first.error or 0.0) ** 2 + (second.error or 0.0) ** 2) ** 0.5
    if abs(difference) <= error:
        return "equal"
    return "above" if difference > 0 else "below"


def mean_and_error(values: Sequence[float]) -> str:
    """Format mean and standard error."""
    return str(estimate(values) or "–")
