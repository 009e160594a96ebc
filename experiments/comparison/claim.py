"""What a claim of a paper is, and how it is held against the runs."""

from collections.abc import Callable
from dataclasses import dataclass

from experiments.comparison.results import Results
from experiments.summary import Estimate, compare

RECALL = "precision_at_1"


@dataclass(frozen=True)
class Side:
    """One of the two that a claim compares: an entry, or one of several."""

    names: tuple[str, ...]  # Of the entries
    key: str = RECALL  # What is compared, a key of a run's summary
    pick: Callable[..., Estimate] = min  # Chooses among several by a key, which is their mean: `min` or `max`

    def estimate(self, results: Results, noise: str) -> Estimate | None:
        """Look it up."""
        found = [results.estimate(name, noise, self.key) for name in self.names]
        known = [estimate for estimate in found if estimate is not None]
        return self.pick(known, key=lambda estimate: estimate.mean) if len(known) == len(found) else None


@dataclass(frozen=True)
class Claim:
    """One comparison that a paper reports."""

    paper: str  # Whose
    text: str  # What is claimed
    figures: str  # What the paper measured, on its own data
    first: Side  # The first is to be above the second, or not below it
    second: Side
    noise: str  # Column in which it is looked up
    allows_equal: bool = False  # Whether it holds as well if both are equal within the error

    @property
    def names(self) -> set[str]:
        """Of the entries it is about."""
        return {*self.first.names, *self.second.names}

    def estimates(self, results: Results) -> tuple[Estimate | None, Estimate | None]:
        """Look up both sides."""
        return self.first.estimate(results, self.noise), self.second.estimate(results, self.noise)

    def verdict(self, results: Results) -> str:
        """Say whether it holds."""
        first, second = self.estimates(results)
        if first is None or second is None:
            return "not run"
        relation = compare(first, second)
        if relation == "equal":
            return "holds" if self.allows_equal else "within the error"
        return "holds" if relation == "above" else "does not hold"
