"""What limits the auditor's probabilities: the estimated rate of wrong labels, their order, or chance.

    python -m experiments.bench.audit_calibration --out out/calibration --store RESULT.json

On the choosing sets of `experiments.bench.audit`. Each error of calibration is measured as the probabilities are, then
with the true rate, and with the map from probability to truth that is best in hindsight. Every outcome is a line of
OUT/outcomes.jsonl; the same command goes on with what is missing.
"""

import argparse
import itertools
import json
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import KFold, cross_val_predict

from experiments.bench.audit import NOISES, calibration_error, noisy
from experiments.bench.audit_sets import SETS, load_set
from experiments.bench.audit_tools import auditor
from experiments.bench.outcomes import resumed

AS_THEY_ARE, RATE_KNOWN, MAP_KNOWN, CHANCE = "as they are", "true rate", "best map", "chance alone"
FOLDS, DRAWS = 5, 20
LEAST = 1e-9


def with_rate(quality: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """Shift log-odds until as many labels are wrong as there are."""
    odds = logit(quality.clip(LEAST, 1 - LEAST))
    inside = min(max(1 - rate, LEAST), 1 - LEAST)
    return expit(odds + brentq(lambda shift: float(expit(odds + shift).mean()) - inside, -60, 60))


def with_map(quality: NDArray[np.float64], right: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Isotonic regression of the truth, each fold by the others."""
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    mapped: NDArray[np.float64] = cross_val_predict(model, quality, right.astype(float), cv=folds)
    return mapped


def measure(quality: NDArray[np.float64], right: NDArray[np.bool_]) -> dict[str, float]:
    random = np.random.default_rng(0)
    drawn = [calibration_error(quality, random.random(len(quality)) < quality) for _ in range(DRAWS)]
    return {
        "rate error": float(right.mean() - quality.mean()),
        AS_THEY_ARE: calibration_error(quality, right),
        RATE_KNOWN: calibration_error(with_rate(quality, float(1 - right.mean())), right),
        MAP_KNOWN: calibration_error(with_map(quality, right), right),
        CHANCE: fmean(drawn),
    }


def errors(data: str, noise: str, seed: int) -> list[dict[str, float]]:
    samples = load_set(data)
    labels, truth = noisy(samples, noise, seed)
    return [measure(auditor(samples[0], labels).quality, labels == truth)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="the result as .json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    cells: dict[str, dict[str, dict[str, float]]] = {}
    columns = ("rate error", AS_THEY_ARE, RATE_KNOWN, MAP_KNOWN, CHANCE)
    for name, noise in itertools.product((name for name, one in SETS.items() if one.part == "choosing"), NOISES):
        keys = [{"data": name, "noise": noise, "seed": seed} for seed in range(given.seeds)]
        outcomes = resumed(given.out / "outcomes.jsonl", keys, errors)
        cells.setdefault(name, {})[noise] = {column: fmean(one[column] for one in outcomes) for column in columns}
    every = [cell for noises in cells.values() for cell in noises.values()]
    results = {
        known: {
            "median": median(cell[known] for cell in every),
            "mean": fmean(cell[known] for cell in every),
            "at most 0.05": fmean(cell[known] <= 0.05 for cell in every),
        }
        for known in (AS_THEY_ARE, RATE_KNOWN, MAP_KNOWN, CHANCE)
    }
    print(json.dumps(results, indent=1))
    if given.store:
        content = {
            "command": f"python -m experiments.bench.audit_calibration --seeds {given.seeds}",
            "seeds": given.seeds,
            "results": results,
            "cells": cells,
        }
        given.store.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
