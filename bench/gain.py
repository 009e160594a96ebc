"""What a method gains over another, in each cell of a comparison: ``python -m bench.gain compare.json METHOD BASE``.

Prints a table in Markdown: a row a data set and noise, with MAP@R of both, the difference, paired by seed, and how well
the method's own score tells right labels from wrong ones. ``compare.json`` is what ``robustdml compare`` leaves.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from robustdml_ops.recipes.evidence.statistics.paired import paired_difference

METRIC = "mean_average_precision_at_r"
COLUMNS = ("data", "noise", "", "", "difference in points", "AUC of the score")

Summaries = dict[tuple[str, str, str], dict[int, dict[str, Any]]]


def read(path: Path) -> Summaries:
    """By data set, noise and entry the summary of each seed."""
    found: Summaries = {}
    for run in json.loads(path.read_text()):
        found.setdefault((run["data"], run["noise"], run["entry"]), {})[run["seed"]] = run["summary"]
    return found


def rows(summaries: Summaries, method: str, base: str) -> list[list[str]]:
    """A row for each data set and noise under which both were run with the same seed, in the order of the runs."""
    table = []
    for (data, noise, entry), ours in summaries.items():
        other = summaries.get((data, noise, base), {})
        if entry != method or not ours.keys() & other.keys():
            continue
        values = [{seed: run[METRIC] for seed, run in runs.items()} for runs in (ours, other)]
        aucs = [run["clean_auc"] for run in ours.values() if run["clean_auc"] is not None]
        means = [f"{statistics.fmean(value.values()):.3f}" for value in values]
        difference = paired_difference(values[0], values[1])
        table.append([data, noise, *means, str(difference), f"{statistics.fmean(aucs):.2f}" if aucs else "–"])
    return table


def main() -> None:
    """Print the table."""
    path, method, base = sys.argv[1:]
    head = [*COLUMNS[:2], method, base, *COLUMNS[4:]]
    for cells in (head, ["---"] * len(head), *rows(read(Path(path)), method, base)):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
