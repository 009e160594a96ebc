"""A claim of a paper, and its test against the runs."""

from collections.abc import Callable
from dataclasses import dataclass

from experiments.comparison.results import Results
from experiments.summary import Estimate, compare

RECALL = "precision_at_1"


@dataclass(frozen=True)
class Operand:
    """An operand of a claim: an entry, or the lowest or highest of several."""

    names: tuple[str, ...]  # Of the entries
    key: str = RECALL  # The compared quantity, a key of a run's summary
    pick: Callable[..., Estimate] = min  # Chooses among several by their mean: `min` or `max`

    def estimate(self, results: Results, noise: str) -> Estimate | None:
        """Its mean and standard error; None where an entry was not run."""
        found = [results.estimate(name, noise, self.key) for name in self.names]
        known = [estimate for estimate in found if estimate is not None]
        return self.pick(known, key=lambda estimate: estimate.mean) if len(known) == len(found) else None


@dataclass(frozen=True)
class Claim:
    """One comparison that a paper reports."""

    paper: str  # Its method
    text: str  # The claim
    figures: str  # Measured by the paper on its own data
    first: Operand  # Claimed to be above the second, or not below it
    second: Operand
    noise: str  # Under which it is tested
    allows_equal: bool = False  # Whether equality within the error counts as holding

    @property
    def names(self) -> set[str]:
        """Names of its entries."""
        return {*self.first.names, *self.second.names}

    def estimates(self, results: Results) -> tuple[Estimate | None, Estimate | None]:
        """Mean and standard error of both operands."""
        return self.first.estimate(results, self.noise), self.second.estimate(results, self.noise)

    def verdict(self, results: Results) -> str:
        """``holds``, ``does not hold``, ``within the error`` or ``not run``."""
        first, second = self.estimates(results)
        if first is None or second is None:
            return "not run"
        relation = compare(first, second)
        if relation == "equal":
            return "holds" if self.allows_equal else "within the error"
        return "holds" if relation == "above" else "does not hold"
