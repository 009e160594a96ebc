"""The study of the suite as it is stored: ``python -m experiments.statistics.stored compare.json suite.json``.

Reads what `python -m experiments compare` has left, and writes means, ranks, comparisons and bars into a file of
`experiments/results`; what says how it was run (`title`, `command`, `commits`, `machine`) stays as it is there.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.comparison.ablations import ALL_ENTRIES
from experiments.comparison.cells import AS_GIVEN, UNTOUCHED_AS_GIVEN, Cell
from experiments.comparison.results import Results
from experiments.statistics.bars import bars
from experiments.statistics.paired import Difference
from experiments.statistics.ranks import rank
from experiments.statistics.sections import differences
from experiments.statistics.suite import FOCUS, Suite
from experiments.summary import Estimate
from robustdml.cache import write_text
from robustdml.config import TrainingConfig
from robustdml.evaluation import JUDGED, falls_short
from robustdml.retrieval import METRICS

UNTOUCHED = "Untouched features"


def study(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything that follows from the runs."""
    common, of_data = TrainingConfig(epochs=runs[0]["settings"]["epochs"]), dict[str, list[Any]]()
    for run in runs:
        cell = Cell(run["data"], ALL_ENTRIES[run["entry"]], run["noise"], run["seed"], common)
        of_data.setdefault(run["data"], []).append((cell, run))
    suite = Suite({data: Results(found) for data, found in of_data.items()})
    return {
        "epochs": common.epochs,
        "seeds": len({run["seed"] for run in runs}),
        "ranks": {METRICS[key]: _ranks(suite, key) for key in JUDGED},
        "against": {METRICS[key]: _against(suite, key) for key in JUDGED},
        "wrong_test_labels": {
            METRICS[key]: {"ranks": ranks, "below": _below(suite, key)}
            for key in JUDGED
            if (ranks := _ranks(suite, key + AS_GIVEN))  # none of images
        },
        "bars": [
            {"bar": bar.text, "metric": bar.metric, "verdict": bar.verdict, "found": bar.found, "misses": bar.misses}
            for bar in bars(suite)
        ],
        "results": {data: _values(found) for data, found in suite.results.items()},
        "seconds": {data: _seconds([run for _, run in found]) for data, found in of_data.items()},
    }


def _seconds(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean time of a training by each method."""
    times = dict[str, list[float]]()
    for run in runs:
        times.setdefault(ALL_ENTRIES[run["entry"]].title, []).append(run["summary"]["training_seconds"])
    return {title: round(fmean(found), 3) for title, found in times.items()}


def _ranks(suite: Suite, key: str) -> dict[str, dict[str, list[float | None]]]:
    ranks, titles = rank(suite, key), {entry.name: entry.title for entry in suite.entries}
    if ranks is None:
        return {}
    first = ranks.order[0]
    return {
        titles[ranks.names[row]]: {"rank": _rounded(ranks.interval(row)), "behind": _rounded(ranks.behind(row, first))}
        for row in ranks.order
    }


def _below(suite: Suite, key: str) -> int:
    """In how many cells robust is more than a point below the untouched features, by wrong test labels."""
    count = 0
    for cell in suite.cells():
        ours, before = (suite.mean(cell[0], FOCUS, cell[1], key + end) for end in (AS_GIVEN, UNTOUCHED_AS_GIVEN))
        count += ours is not None and before is not None and falls_short(ours, before)
    return count


def _against(suite: Suite, key: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for entry in suite.others:
        of_cells = differences(suite, entry, key)
        verdicts = [one.verdict for _, one in of_cells]
        counts = {verdict: verdicts.count(verdict) for verdict in ("above", "below", "undecided")}
        found[entry.title] = {**counts, "points": round(100 * fmean(one.mean for _, one in of_cells), 1)}
    return found


def _values(results: Results) -> dict[str, Any]:
    found: dict[str, Any] = {"noises": results.noises}
    for key in JUDGED:
        untouched = results.untouched(key)
        found[METRICS[key]] = {
            UNTOUCHED: [None if untouched is None else round(untouched, 4)] * len(results.noises),
            **{
                entry.title: [_pair(results.estimate(entry.name, noise, key)) for noise in results.noises]
                for entry in results.entries
            },
        }
    return found


def _pair(value: Estimate | None) -> list[float | None] | None:
    return None if value is None else [round(value.mean, 4), None if value.error is None else round(value.error, 4)]


def _rounded(value: Difference) -> list[float | None]:
    return [None if one is None else round(one, 2) for one in (value.mean, value.low, value.high)]


def main() -> None:
    """Write the study of the runs in a file."""
    source, target = map(Path, sys.argv[1:])
    about = json.loads(target.read_text()) if target.exists() else {}
    text = json.dumps({**about, **study(json.loads(source.read_text()))}, indent=1)
    for _ in range(2):  # Lists of numbers, and lists of these, take a line each.
        text = re.sub(r"\[\s+([^{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    write_text(target, text + "\n")


if __name__ == "__main__":
    main()
