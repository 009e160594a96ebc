"""The report on several data sets: targets, ranks, differences."""

from experiments.comparison.entries import Entry
from experiments.comparison.section import Picture, Section
from experiments.statistics.bars import bars
from experiments.statistics.paired import Difference, mean_over_data, paired_difference
from experiments.statistics.plots import rank_plot
from experiments.statistics.ranks import Ranks, rank
from experiments.statistics.suite import FOCUS, Suite, set_of
from robustdml.evaluation import JUDGED
from robustdml.retrieval import METRICS


def sections(suite: Suite) -> list[Section]:
    """All sections on several data sets."""
    found = [Section("The bars", bar_rows(suite), _BARS)] if suite.focus else []
    for key in JUDGED:
        ranks = rank(suite, key)
        if ranks is not None:
            found.append(_rank_section(suite, ranks, METRICS[key]))
    if suite.focus is not None and suite.others:
        for key in JUDGED:
            title = f"{suite.focus.title} against each other method, {METRICS[key]}"
            found.append(Section(title, summary_rows(suite, key), _SUMMARY))
        for key in JUDGED:
            title = f"{suite.focus.title} minus each other method, {METRICS[key]}, by data set and noise"
            found.append(Section(title, difference_rows(suite, key), _DIFFERENCES))
    return found


def bar_rows(suite: Suite) -> list[list[str]]:
    """Table of the targets."""
    head = ["bar", "metric", "verdict", "found", "cells that miss it (ours : the other)"]
    return [
        head, *([bar.text, bar.metric, bar.verdict, bar.found, "; ".join(bar.misses)] for bar in bars(suite))
    ]  # fmt: skip


def summary_rows(suite: Suite, key: str) -> list[list[str]]:
    """Table of how often robust is above each other method, and by how much."""
    table = [["against", "cells above", "below", "undecided", "mean difference in points, a data set counting once"]]
    for entry in suite.others:
        found = differences(suite, entry, key)
        verdicts = [difference.verdict for _, difference in found]
        by_data: dict[str, list[float]] = {}
        for data, difference in found:
            by_data.setdefault(set_of(data), []).append(difference.mean)
        if by_data:
            mean = mean_over_data([sum(values) / len(values) for values in by_data.values()])
            counts = [str(verdicts.count(verdict)) for verdict in ("above", "below", "undecided")]
            table.append([entry.title, *counts, str(mean)])
    return table


def difference_rows(suite: Suite, key: str) -> list[list[str]]:
    """Table of the paired differences by cell."""
    table = [["", *(entry.title for entry in suite.others)]]
    for data, noise in suite.cells():
        found = [_difference(suite, data, noise, entry, key) for entry in suite.others]
        if any(found):
            table.append([f"{data}, {noise}", *(str(difference or "–") for difference in found)])
    return table


def _rank_section(suite: Suite, ranks: Ranks, metric: str) -> Section:
    titles = {entry.name: entry.title for entry in suite.entries}
    table = [["", "average rank", "95 % interval", f"behind {titles[ranks.names[ranks.order[0]]]}", "95 % interval"]]
    for row in ranks.order:
        own, behind = ranks.interval(row), ranks.behind(row, ranks.order[0])
        table.append([titles[ranks.names[row]], *_with_interval(own), *_with_interval(behind)])
    text = (
        f"Ranked in {ranks.cells} cells of {ranks.by_data.shape[0]} data sets, "
        f"{ranks.cells_left_out} left out because a method has no outcome there."
    )
    if ranks.friedman is not None:
        text += (
            f" Friedman: p = {ranks.friedman:.2g}. Nemenyi: ranks differ at 5 % if they are apart by "
            f"{ranks.critical_difference:.2f}."
        )
    caption = f"{_RANKS} {text}"
    alternative = f"Average rank of each method by {metric}, with intervals."
    picture = Picture(rank_plot(suite, ranks, metric), alternative, caption)
    return Section(f"Average ranks by {metric}", table, text, picture)


def _with_interval(value: Difference) -> tuple[str, str]:
    return f"{value.mean:.2f}", "–" if value.low is None else f"[{value.low:.2f}, {value.high:.2f}]"


def _difference(suite: Suite, data: str, noise: str, entry: Entry, key: str) -> Difference | None:
    results = suite.results[data]
    return paired_difference(results.by_seed(FOCUS, noise, key), results.by_seed(entry.name, noise, key))


def differences(suite: Suite, entry: Entry, key: str) -> list[tuple[str, Difference]]:
    """Robust minus another method in each cell, with the name of the data set."""
    found = [(data, _difference(suite, data, noise, entry, key)) for data, noise in suite.cells()]
    return [(data, difference) for data, difference in found if difference is not None]


_BARS = (
    "Each is held against the means over the seeds at the last epoch. Methods without a filter are the losses alone "
    "and those with weights or confidences of their own."
)
_RANKS = (
    "Methods are ranked in each data set under each noise. Dots are averages over the data sets, each of which counts "
    "once; bars are 95 % intervals of a bootstrap that draws data sets anew, not cells: those of one go together."
)
_SUMMARY = (
    "A cell is a data set under a noise; above or below where the 95 % interval of the paired difference (Student's t "
    "over the seeds) excludes 0. The interval of the mean is a bootstrap over the data sets."
)
_DIFFERENCES = "In points, paired by seed, with 95 % intervals by Student's t."
