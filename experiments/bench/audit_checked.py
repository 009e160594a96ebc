"""What the auditor's probabilities gain from labels that a person has checked.

    python -m experiments.bench.audit_checked --seeds 5 --out out/checked --store experiments/results/audit-checked.json

On the report sets of `experiments.bench.audit`. Checked are the first suspects, or as many spread over all suspects;
errors are measured on the other labels. Every outcome is a line of OUT/outcomes.jsonl; the same command goes on.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from experiments.bench.audit import NOISES, calibration_error, noisy
from experiments.bench.audit_sets import CHOOSING, REPORT, SETS, load_set
from robustdml.audit import LabelAuditor, auditor
from robustdml.audit.rounds import judge

NUMBERS = (0, 20, 50, 100)
FIRST, SPREAD = "the first suspects", "spread over the suspects"


def chosen(quality: NDArray[np.float64], number: int, how: str) -> NDArray[np.int64]:
    """Labels to check: at most a third."""
    order, number = np.argsort(quality), min(number, len(quality) // 3)
    if how == FIRST:
        return order[:number]
    suspects = order[: max(number, int((quality < 0.5).sum()))]
    return suspects[np.linspace(0, len(suspects) - 1, number).astype(np.int64)]


def cache_of_one(function: Callable[..., object]) -> Callable[..., object]:
    """The function, which is called once alone."""
    found: list[object] = []

    def call(*arguments: object) -> object:
        if not found:
            found.append(function(*arguments))
        return found[0]

    return call


def outcomes_of(features: NDArray[np.float32], labels: NDArray[np.int64], truth: NDArray[np.int64]) -> list[dict]:
    """Errors by the number of checked labels, and by how they were chosen."""
    right, out = labels == truth, list[dict]()
    with mock.patch.object(auditor, "judge", cache_of_one(judge)):
        quality = LabelAuditor().fit(features, labels).label_quality_
        for how, number in ((FIRST, 0), *((how, n) for how in (FIRST, SPREAD) for n in NUMBERS[1:])):
            checked = np.full(len(labels), np.nan)
            places = chosen(quality, number, how)
            checked[places] = right[places]
            found, others = LabelAuditor().fit(features, labels, checked), np.isnan(checked)
            share, low, high = found.wrong_share_.tolist()
            out.append(
                {
                    "how": how,
                    "checked": number,
                    "ece": calibration_error(found.label_quality_[others], right[others]),
                    "share error": abs(share - float(1 - right.mean())),
                    "holds": bool(low <= 1 - right.mean() <= high),
                    "width": high - low,
                }
            )
    return out


def summary(rows: list[dict]) -> dict[str, float]:
    """Of data sets with a noise, none as well, means over seeds."""
    cells: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        cells.setdefault((row["data"], row["noise"]), []).append(row)
    errors = [fmean(row["ece"] for row in found) for found in cells.values()]
    told = {name: fmean(row[name] for row in rows) for name in ("share error", "holds", "width")}
    within = fmean(error <= 0.05 for error in errors)
    return {"cells": len(cells), "ece": median(errors), "ece at most 0.05": within, **told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=(CHOOSING, REPORT), default=REPORT)
    parser.add_argument("--data", nargs="+", choices=SETS, help="only these of the part")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="the result as .json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "outcomes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["data"], row["noise"], row["seed"]) for row in rows}
    for name in given.data or [name for name, one in SETS.items() if one.part == given.part]:
        samples = load_set(name)
        for noise, seed in ((noise, seed) for noise in NOISES for seed in range(given.seeds)):
            if (name, noise, seed) not in done:
                key = {"data": name, "noise": noise, "seed": seed}
                found = [key | one for one in outcomes_of(samples[0], *noisy(samples, noise, seed))]
                with path.open("a") as file:
                    file.writelines(json.dumps(one) + "\n" for one in found)
                rows += found
    results = {}
    for how, number in dict.fromkeys((row["how"], row["checked"]) for row in rows):
        results[f"{number}, {how}"] = summary([row for row in rows if (row["how"], row["checked"]) == (how, number)])
    for name, figures in results.items():
        print(name, {key: round(value, 3) for key, value in figures.items()})
    if given.store:
        command = f"python -m experiments.bench.audit_checked --seeds {given.seeds}"
        given.store.write_text(json.dumps({"command": command, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
