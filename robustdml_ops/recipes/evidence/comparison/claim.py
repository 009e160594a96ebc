"""What a claim of a paper is, and how it is held against the runs."""

from collections.abc import Callable
from dataclasses import dataclass

from robustdml_ops.recipes.evidence.comparison.results import Results
from robustdml_ops.recipes.evidence.summary import Estimate, compare

RECALL = "precision_at_1"


@dataclass(frozen=True)
class Side:
    """One of the two that a claim compares: an entry, or one of several.

    Attributes
    ----------
    names : tuple of str
        Of the entries.
    key : str
        What is compared, a key of a run's summary.
    pick : callable
        Chooses among several by a key, which is their mean: `min` or `max`.
    """

    names: tuple[str, ...]
    key: str = RECALL
    pick: Callable[..., Estimate] = min

    def estimate(self, results: Results, noise: str) -> Estimate | None:
        """Look it up.

        Parameters
        ----------
        results : Results
            Of the runs.
        noise : str
            Column.

        Returns
        -------
        Estimate or None
            None unless all of the entries have been run.
        """
        found = [results.estimate(name, noise, self.key) for name in self.names]
        known = [estimate for estimate in found if estimate is not None]
        return self.pick(known, key=lambda estimate: estimate.mean) if len(known) == len(found) else None


@dataclass(frozen=True)
class Claim:
    """One comparison that a paper reports.

    Attributes
    ----------
    paper : str
        Whose.
    text : str
        What is claimed.
    figures : str
        What the paper measured, on its own data.
    first, second : Side
        The first is to be above the second, or not below it.
    noise : str
        Column in which it is looked up.
    allows_equal : bool
        Whether it holds as well if both are equal within the error.
    """

    paper: str
    text: str
    figures: str
    first: Side
    second: Side
    noise: str
    allows_equal: bool = False

    @property
    def names(self) -> set[str]:
        """Of the entries it is about."""
        return {*self.first.names, *self.second.names}

    def estimates(self, results: Results) -> tuple[Estimate | None, Estimate | None]:
        """Look up both sides.

        Parameters
        ----------
        results : Results
            Of the runs.

        Returns
        -------
        tuple
            None where there was no run.
        """
        return self.first.estimate(results, self.noise), self.second.estimate(results, self.noise)

    def verdict(self, results: Results) -> str:
        """Say whether it holds.

        Parameters
        ----------
        results : Results
            Of the runs.

        Returns
        -------
        str
            ``holds``, ``does not hold``, ``within the error`` or ``not run``.
        """
        first, second = self.estimates(results)
        if first is None or second is None:
            return "not run"
        relation = compare(first, second)
        if relation == "equal":
            return "holds" if self.allows_equal else "within the error"
        return "holds" if relation == "above" else "does not hold"
