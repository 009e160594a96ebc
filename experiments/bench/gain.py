"""Gain of a method over another in each cell: ``python -m experiments.bench.gain compare.json METHOD BASE``.

A cell is a data set under a noise. Prints MAP@R of both, the difference, paired by seed, and how well the method's own
score tells right labels from wrong ones; then what is gained where the score tells them badly, and where well.
``compare.json`` is what ``robustdml compare`` leaves.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.statistics.paired import Difference, paired_difference

METRIC = "mean_average_precision_at_r"
# Areas under the curve between which cells are put together.
BANDS = (0.0, 0.6, 0.75, 0.9, 1.01)


@dataclass(frozen=True)
class Cell:
    """A data set under a noise: MAP@R of the method and of its base, and the AUC of the method's score, if any."""

    data: str
    noise: str
    ours: float
    base: float
    difference: Difference
    auc: float | None


def read(path: Path, method: str, base: str) -> list[Cell]:
    """The cells in which both were run with the same seeds, in the order of the runs."""
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    aucs: dict[tuple[str, str], list[float]] = {}
    for run in json.loads(path.read_text()):
        place, summary = (run["data"], run["noise"]), run["summary"]
        values.setdefault((*place, run["entry"]), {})[run["seed"]] = summary[METRIC]
        if run["entry"] == method and summary["clean_auc"] is not None:
            aucs.setdefault(place, []).append(summary["clean_auc"])
    cells = []
    for (data, noise, entry), ours in values.items():
        other = values.get((data, noise, base), {})
        difference = paired_difference(ours, other)
        if entry == method and difference is not None:
            means = statistics.fmean(ours.values()), statistics.fmean(other.values())
            found = aucs.get((data, noise))
            cells.append(Cell(data, noise, *means, difference, statistics.fmean(found) if found else None))
    return cells


def rows(cells: Sequence[Cell]) -> list[list[str]]:
    """A row for each cell."""
    return [
        [
            cell.data,
            cell.noise,
            f"{cell.ours:.3f}",
            f"{cell.base:.3f}",
            str(cell.difference),
            "–" if cell.auc is None else f"{cell.auc:.2f}",
        ]
        for cell in cells
    ]


def band_rows(cells: Sequence[Cell]) -> list[list[str]]:
    """A row for each band of the AUC that has cells: how many, in how many the method is above, and by how much."""
    table = []
    for low, high in itertools.pairwise(BANDS):
        gains = [100 * cell.difference.mean for cell in cells if cell.auc is not None and low <= cell.auc < high]
        if gains:
            spread = [f"{value(gains):+.1f}" for value in (statistics.fmean, min, max)]
            title = f"{low:.2f} and more" if high > 1 else f"{low:.2f} to {high:.2f}"
            table.append([title, str(len(gains)), str(sum(gain > 0 for gain in gains)), *spread])
    return table


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, meaning in (("compare", "compare.json"), ("method", "title of the method"), ("base", "of the other")):
        parser.add_argument(name, help=meaning)
    given = parser.parse_args()
    method, base = given.method, given.base
    cells = read(Path(given.compare), method, base)
    head = ["data", "noise", method, base, "difference in points", "AUC of the score"]
    _print([head, *rows(cells)])
    print()
    _print([["AUC of the score", "cells", f"above {base}", "mean difference", "least", "most"], *band_rows(cells)])


def _print(table: Sequence[Sequence[str]]) -> None:
    head, *body = table
    for row in (head, ["---"] * len(head), *body):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
