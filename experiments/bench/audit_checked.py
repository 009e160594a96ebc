"""How much checked labels improve the auditor's probabilities.

    python -m experiments.bench.audit_checked --seeds 5 --out out/checked --store experiments/results/audit-checked.json

On the report sets of `experiments.bench.audit`. Checked are the first suspects, or as many spread over all suspects;
errors are measured on the other labels. Every outcome is a line of OUT/outcomes.jsonl; the same command goes on.
"""

import argparse
import itertools
import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.bench.audit import NOISES, calibration_error, noisy
from experiments.bench.audit_sets import CHOOSING, REPORT, SETS, load_set
from experiments.bench.outcomes import resumed
from robustdml.audit.auditor import wrong_share
from robustdml.audit.rounds import judge, with_checked

NUMBERS = (0, 20, 50, 100)
FIRST, SPREAD = "the first suspects", "spread over the suspects"


def chosen(quality: NDArray[np.float64], number: int, how: str) -> NDArray[np.int64]:
    """Labels to check: at most a third."""
    order, number = np.argsort(quality), min(number, len(quality) // 3)
    if how == FIRST:
        return order[:number]
    suspects = order[: max(number, int((quality < 0.5).sum()))]
    return suspects[np.linspace(0, len(suspects) - 1, number).astype(np.int64)]


def errors(data: str, noise: str, seed: int) -> list[dict[str, Any]]:
    """Errors by the number of checked labels, and by how they were chosen."""
    features, truth = load_set(data)
    labels, truth = noisy((features, truth), noise, seed)
    right, out = labels == truth, []
    judged = judge(features, torch.from_numpy(labels), int(labels.max()) + 1)
    for how, number in ((FIRST, 0), *((how, n) for how in (FIRST, SPREAD) for n in NUMBERS[1:])):
        checked = np.full(len(labels), np.nan)
        places = chosen(judged.right.double().numpy(), number, how)
        checked[places] = right[places]
        found, others = with_checked(judged, torch.from_numpy(checked)), np.isnan(checked)
        quality, explained = found.right.double().numpy(), found.qualities.double().numpy()
        everything = np.zeros(len(labels), np.int64)
        share, low, high = wrong_share(1 - quality, 1 - explained, found.overlap.double().numpy(), everything, 1)[0]
        rate = float(1 - right.mean())
        out.append(
            {
                "how": how,
                "checked": number,
                "ece": calibration_error(quality[others], right[others]),
                "share error": abs(float(share) - rate),
                "holds": bool(low <= rate <= high),
                "width": float(high - low),
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
    names = given.data or [name for name, one in SETS.items() if one.part == given.part]
    cases = itertools.product(names, NOISES, range(given.seeds))
    keys = [{"data": name, "noise": noise, "seed": seed} for name, noise, seed in cases]
    rows = resumed(given.out / "outcomes.jsonl", keys, errors)
    results = []
    for how, number in dict.fromkeys((row["how"], row["checked"]) for row in rows):
        some = [row for row in rows if (row["how"], row["checked"]) == (how, number)]
        results.append({"checked": number, "which": how if number else "", **summary(some)})
        print(results[-1])
    if given.store:
        command = f"python -m experiments.bench.audit_checked --seeds {given.seeds}"
        given.store.write_text(json.dumps({"command": command, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
