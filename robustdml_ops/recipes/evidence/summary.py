"""What several seeds say: means, standard errors, and whether one mean is above another."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """Mean of a few runs and its standard error.

    Attributes
    ----------
    mean : float
        Of the values.
    error : float or None
        Standard error of the mean; None for one value.
    """

    mean: float
    error: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.error is None else f"{self.mean:.3f} ± {self.error:.3f}"


def estimate(values: Sequence[float]) -> Estimate | None:
    """Summarise the values of several seeds.

    Parameters
    ----------
    values : sequence of float
        One value a seed.

    Returns
    -------
    Estimate or None
        None for no value.

    Examples
    --------
    >>> str(estimate([0.5, 0.7]))
    '0.600 ± 0.100'
    """
    if not values:
        return None
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return Estimate(statistics.fmean(values), error)


def compare(first: Estimate, second: Estimate, more: float = 0.0) -> str:
    """Say whether the first mean is above the second, by twice the standard error of their difference at least.

    Parameters
    ----------
    first, second : Estimate
        Of independent runs.
    more : float
        By how much it is to be above.

    Returns
    -------
    str
        ``above``, ``below`` or ``equal`` (within the error).

    Examples
    --------
    >>> compare(Estimate(0.8, 0.01), Estimate(0.7, 0.01)), compare(Estimate(0.71, 0.01), Estimate(0.7, 0.01))
    ('above', 'equal')
    """
    difference = first.mean - second.mean - more
    room = 2 * ((first.error or 0.0) ** 2 + (second.error or 0.0) ** 2) ** 0.5
    if abs(difference) <= room:
        return "equal"
    return "above" if difference > 0 else "below"


def mean_and_error(values: Sequence[float]) -> str:
    """Write a mean and its standard error, for people to read.

    Parameters
    ----------
    values : sequence of float
        One value a seed.

    Returns
    -------
    str
        ``0.546 ± 0.003``, the mean alone for one value, ``–`` for none.
    """
    return str(estimate(values) or "–")
