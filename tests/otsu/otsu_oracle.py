"""Otsu's cut in rational numbers: no rounding anywhere."""

import math
from fractions import Fraction
from typing import NamedTuple

import torch

ERROR = {torch.float32: 2.5e-7, torch.float64: 4e-15}  # of thresholds and means, relative to the largest value


class Cut(NamedTuple):
    between: list[Fraction | None]  # of the cut after the i-th, at i; None where it is not allowed
    ordered: list[Fraction]  # the finite values

    @property
    def index(self) -> int:
        """The lowest of the best, or how many values there are."""
        allowed = [(between, -i) for i, between in enumerate(self.between) if between is not None]
        return -max(allowed)[1] if allowed else len(self.ordered)

    @property
    def found(self) -> bool:
        return any(between is not None for between in self.between)

    def means(self, index: int) -> tuple[float, float]:
        """Means of the groups, or of all values twice; 0 if there is none."""
        if not self.ordered:
            return 0.0, 0.0
        groups = (self.ordered[:index], self.ordered[index:]) if self.found else (self.ordered, self.ordered)
        low, high = (float(sum(group) / len(group)) for group in groups)
        return low, high


def exact_cut(values, min_group=2) -> Cut:
    """All cuts of ``values``, floats of any kind."""
    ordered = sorted(Fraction(float(value)) for value in values if math.isfinite(value))
    n, total, below = len(ordered), sum(ordered), Fraction(0)
    between: list[Fraction | None] = [None]
    for i in range(1, n):
        below += ordered[i - 1]
        allowed = ordered[i - 1] < ordered[i] and min(i, n - i) >= min_group
        between.append((n * below - i * total) ** 2 / (i * (n - i)) if allowed else None)
    return Cut(between, ordered)


def check(values, min_group, threshold, index, low_mean, high_mean, found, excluded, eps, exact=True):
    """One row's result; with ``exact`` the very cut, else one that is as good but for rounding."""
    truth = exact_cut(values, min_group)
    assert found == truth.found
    assert excluded == len(values) - len(truth.ordered)
    best = truth.index
    if exact or not found:
        assert index == best, (list(values), index, best)
    else:
        assert float(truth.between[index] / truth.between[best]) >= 1 - 1e-11
    scale = max((abs(float(value)) for value in truth.ordered), default=0.0)
    for mean, right in zip((low_mean, high_mean), truth.means(index), strict=True):
        assert abs(float(mean) - right) <= eps * scale
    if not found:
        assert threshold == math.inf
        return
    low, high = truth.ordered[index - 1], truth.ordered[index]
    middle = Fraction(float(threshold))
    assert low <= middle < high
    assert float(abs(middle - (low + high) / 2)) <= eps * scale
    assert sum(Fraction(float(value)) <= middle for value in values if math.isfinite(value)) == index
