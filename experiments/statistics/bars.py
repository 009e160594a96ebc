"""Targets ("bars") that the project sets its robust method, tested against the outcomes."""

from collections.abc import Callable
from dataclasses import dataclass

from experiments.comparison.cells import LARGE_CLASS
from experiments.comparison.entries import Entry
from experiments.statistics.ranks import rank
from experiments.statistics.suite import FOCUS, Suite
from robustdml.evaluation import JUDGED, falls_short
from robustdml.noise import parse_noise
from robustdml.retrieval import METRICS

CLEAN = "none"
NOISY_FROM = 0.2
SHARE_ABOVE = 0.8
SHARE_BEST = 0.94
MOST_REJECTED = 0.01


@dataclass(frozen=True)
class Bar:
    """A target and whether it was reached."""

    text: str  # The target
    metric: str  # Title of its metric
    reached: bool | None  # None where the runs do not decide it
    found: str  # Counts or ranks found
    misses: tuple[str, ...] = ()  # Cells that miss it, with robust's value and the reference

    @property
    def verdict(self) -> str:
        """``reached``, ``not reached`` or ``not run``."""
        return {True: "reached", False: "not reached", None: "not run"}[self.reached]


@dataclass(frozen=True)
class _Pair:
    """Robust's value and its reference in a cell."""

    cell: str
    ours: float
    other: float

    def __str__(self) -> str:
        return f"{self.cell} ({self.ours:.3f} : {self.other:.3f})"


@dataclass
class _Held:
    """Robust against a reference, cell by cell."""

    pairs: list[_Pair]
    absent: int

    def bar(self, text: str, key: str, misses: list[_Pair], what: str = "cells", allowed: float = 0.0) -> Bar:
        """Reached if at most a fraction `allowed` of the cells misses it; undecided while cells are absent."""
        if not self.pairs:
            return Bar(text, METRICS[key], None, "")
        known, good = len(self.pairs), len(self.pairs) - len(misses)
        missed = len(misses) > round(allowed * (known + self.absent), 9)
        found = f"{good} of {known} {what}, {good / known:.0%}" + (f"; {self.absent} not run" if self.absent else "")
        reached = False if missed else None if self.absent else True
        return Bar(text, METRICS[key], reached, found, tuple(map(str, misses)))


def bars(suite: Suite) -> list[Bar]:
    """Test all targets."""
    focus = suite.focus
    if focus is None:
        return []
    by_metric = [bar(suite, focus, key) for bar in (_clean, _base, _above, _best, _first, _untouched) for key in JUDGED]
    return [*by_metric, _rejected(suite)]


def _clean(suite: Suite, focus: Entry, key: str) -> Bar:
    held = _against(suite, key, _best_unfiltered(suite, key), lambda noise: noise == CLEAN)
    misses = [pair for pair in held.pairs if falls_short(pair.ours, pair.other)]
    return held.bar("clean labels: within 1 point of the best method without a filter", key, misses, "data sets")


def _base(suite: Suite, focus: Entry, key: str) -> Bar:
    base = next((entry for entry in suite.entries if entry.name == focus.base), None)
    held = _against(suite, key, lambda data, noise: suite.mean(data, focus.base or "", noise, key), _is_noisy)
    misses = [pair for pair in held.pairs if pair.ours < pair.other]
    title = focus.base if base is None else base.title
    return held.bar(f"noise of 20 % and more: never below its base loss, {title}", key, misses)


def _above(suite: Suite, focus: Entry, key: str) -> Bar:
    held = _against(suite, key, _best_unfiltered(suite, key), _is_noisy)
    misses = [pair for pair in held.pairs if pair.ours <= pair.other]
    text = f"noise of 20 % and more: above the best method without a filter in {SHARE_ABOVE:.0%} of the cells"
    return held.bar(text, key, misses, allowed=1 - SHARE_ABOVE)


def _best(suite: Suite, focus: Entry, key: str) -> Bar:
    def best(data: str, noise: str) -> float | None:
        values = [suite.mean(data, entry.name, noise, key) for entry in suite.others]
        return max((value for value in values if value is not None), default=None)

    held = _against(suite, key, best, lambda noise: True)
    misses = [pair for pair in held.pairs if falls_short(pair.ours, pair.other)]
    text = f"within 1 point of the best of all other methods in {SHARE_BEST:.0%} of the cells"
    return held.bar(text, key, misses, allowed=1 - SHARE_BEST)


def _first(suite: Suite, focus: Entry, key: str) -> Bar:
    text = "average rank over all data sets and noises: first, with an interval that excludes the second"
    ranks = rank(suite, key)
    if ranks is None or ranks.by_data.shape[0] < 2:
        return Bar(text, METRICS[key], None, "needs two data sets and two methods at least")
    ours = ranks.names.index(focus.name)
    rival = next(row for row in ranks.order if row != ours)
    own, lead = ranks.interval(ours), ranks.behind(rival, ours)
    titles = {entry.name: entry.title for entry in suite.entries}
    # The interval of its rank must exclude the second's rank, and that of the lead must exclude 0.
    reached = own.high is not None and own.high < ranks.average[rival] and lead.low is not None and lead.low > 0
    found = (
        f"{own.mean:.2f} [{own.low:.2f}, {own.high:.2f}]; {titles[ranks.names[rival]]} {ranks.average[rival]:.2f}, "
        f"behind by {lead.mean:.2f} [{lead.low:.2f}, {lead.high:.2f}]"
    )
    return Bar(text, METRICS[key], reached, found)


def _untouched(suite: Suite, focus: Entry, key: str) -> Bar:
    held = _against(suite, key, lambda data, noise: suite.results[data].untouched(key), lambda noise: True)
    misses = [pair for pair in held.pairs if falls_short(pair.ours, pair.other)]
    return held.bar("any noise: not more than 1 point below the untouched features", key, misses)


def _rejected(suite: Suite) -> Bar:
    text = f"clean labels: at most {MOST_REJECTED:.0%} rejected of classes of {LARGE_CLASS} samples and more"
    shares = {data: suite.mean(data, FOCUS, CLEAN, "right_rejected") for data, noise in suite.cells() if noise == CLEAN}
    known = {data: share for data, share in shares.items() if share is not None}
    misses = tuple(f"{data} ({share:.1%})" for data, share in known.items() if share > MOST_REJECTED)
    if not known:
        return Bar(text, "", None, "")
    return Bar(text, "", not misses, f"{len(known) - len(misses)} of {len(known)} data sets", misses)


def _is_noisy(noise: str) -> bool:
    named = parse_noise(noise)
    return named is not None and named[1] >= NOISY_FROM


_Reference = Callable[[str, str], float | None]


def _best_unfiltered(suite: Suite, key: str) -> _Reference:
    names = [entry.name for entry in suite.others if entry.unfiltered]

    def best(data: str, noise: str) -> float | None:
        values = [suite.mean(data, name, noise, key) for name in names]
        return max((value for value in values if value is not None), default=None)

    return best


def _against(suite: Suite, key: str, reference: _Reference, wanted: Callable[[str], bool]) -> _Held:
    held = _Held([], 0)
    for data, noise in suite.cells():
        if not wanted(noise):
            continue
        ours, other = suite.mean(data, FOCUS, noise, key), reference(data, noise)
        if ours is None or other is None:
            held.absent += 1
        else:
            held.pairs.append(_Pair(f"{data}, {noise}", ours, other))
    return held
