"""Wrong labels found by the auditor and by cleanlab, on small data sets of many kinds.

    python -m experiments.bench.audit --part choosing --out out/audit
    python -m experiments.bench.audit --part report --seeds 5 --out out/audit --store experiments/results/audit.json

Settings, and the form of cleanlab to compare with, are chosen on the choosing sets. Every outcome is a line of
OUT/outcomes.jsonl; the same command goes on with what is missing. ``--part glyphs`` learns embeddings of Glyphs from
its labels first. Needs ``pip install cleanlab``.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

import experiments.noise  # noqa: F401  (adds noise models)
from experiments.bench.audit_sets import SETS, AuditSet, Samples, load_set
from experiments.bench.audit_tools import CLEANLAB, LEARNT, OURS, Answer, answers
from robustdml.data.dataset import RetrievalData, Split
from robustdml.noise import with_wrong_labels

NOISES = ("none", "uniform:0.05", "uniform:0.2", "uniform:0.4", "class-conditional:0.2")
BINS = 10
# The best on the choosing sets.
FORM = "cleanlab, logistic regression of scaled columns, prune_by_noise_rate"


def calibration_error(quality: NDArray[np.floating], right: NDArray[np.bool_]) -> float:
    """Expected calibration error in bins of equal width."""
    groups = np.minimum((quality * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(groups, weights=right - quality)).sum() / len(right))


def measure(answer: Answer, labels: NDArray[np.int64], truth: NDArray[np.int64]) -> dict[str, object]:
    wrong = labels != truth
    hits = int((answer.issues & wrong).sum())
    precision, recall = hits / max(int(answer.issues.sum()), 1), hits / max(int(wrong.sum()), 1)
    out: dict[str, object] = {
        "samples": len(wrong),
        "rate": float(wrong.mean()),
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / max(precision + recall, 1e-12),
        "ap": float(average_precision_score(wrong, -answer.quality)) if wrong.any() else None,
        "auc": float(roc_auc_score(~wrong, answer.quality)) if wrong.any() else None,
        "proposals": float((answer.proposed == truth)[answer.issues & wrong].mean()) if hits else None,
    }
    if answer.share is not None and answer.called_wrong is not None:
        out |= {
            "ece": calibration_error(answer.quality, ~wrong),
            "share": answer.share.tolist(),
            "called wrong": float(answer.called_wrong[~wrong].mean()),
            "found": float(answer.called_wrong[wrong].mean()) if wrong.any() else None,
            "called": int(answer.called_wrong.sum()),
        }
    return out


def noisy(samples: Samples, noise: str, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels given, and the true ones, in one numbering: classes without a label are left out."""
    features, truth = samples
    split = Split(features, truth, tuple(map(str, range(int(truth.max()) + 1))))
    kind, _, rate = noise.partition(":")
    if kind == "uniform":
        # Each label by itself: `symmetric` takes the same share of each class, which of two samples is none.
        random = np.random.default_rng(seed)
        step = random.integers(1, split.num_classes, len(truth)) * (random.random(len(truth)) < float(rate))
        labels = (truth + step) % split.num_classes
    else:
        labels = with_wrong_labels(RetrievalData("bench", split, split), noise, seed).train.labels
    used, given = np.unique(labels, return_inverse=True)
    number = np.full(split.num_classes, -1)
    number[used] = np.arange(len(used))
    return given, number[truth]


def run(
    names: list[str],
    tools: list[str],
    noises: Sequence[str],
    seeds: range,
    path: Path,
    sets: Mapping[str, AuditSet] = SETS,
) -> list[dict]:
    """Add what is missing to the outcomes in `path`, and give all of these sets, tools, noises and seeds."""
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    wanted = []
    for name in names:
        samples = None
        for key in [{"data": name, "noise": noise, "seed": seed} for seed in seeds for noise in noises]:
            found = {one["tool"]: one for one in done if key.items() <= one.items()}
            left = [tool for tool in tools if tool not in found]
            if left:
                samples = samples or load_set(name, sets)
                case = noisy(samples, key["noise"], key["seed"])
                for tool, answer in answers(samples[0], case[0], key["seed"], left).items():
                    start = time.perf_counter()
                    found[tool] = key | {"tool": tool} | measure(answer(), *case)
                    found[tool]["seconds"] = time.perf_counter() - start
                    with path.open("a") as file:
                        file.write(json.dumps(found[tool]) + "\n")
            wanted += [found[tool] for tool in tools]
    return wanted


def cells(outcomes: list[dict], tool: str, column: str) -> dict[tuple[str, str], float]:
    """Means over the seeds by data set and noise, of wrong labels alone."""
    values: dict[tuple[str, str], list[float]] = {}
    for one in outcomes:
        if one["tool"] == tool and one["noise"] != "none":
            values.setdefault((one["data"], one["noise"]), []).append(one[column])
    return {cell: fmean(found) for cell, found in values.items()}


def best_form(outcomes: list[dict]) -> str:
    """The form of cleanlab with the highest mean F1."""
    return max(CLEANLAB, key=lambda form: fmean(cells(outcomes, form, "f1").values()))


def summary(outcomes: list[dict], form: str) -> dict[str, dict[str, float]]:
    """Figures by kind of data and over all."""
    ours = [one for one in outcomes if one["tool"] == OURS]
    out = {}
    for kind in (*dict.fromkeys(SETS[one["data"]].kind for one in ours), "all"):
        some = [one for one in outcomes if kind in ("all", SETS[one["data"]].kind)]
        f1, other = (cells(some, tool, "f1") for tool in (OURS, form))
        mine = [one for one in some if one["tool"] == OURS]
        ece = {}
        for one in mine:
            ece.setdefault((one["data"], one["noise"]), []).append(one["ece"])
        means = [fmean(values) for values in ece.values()]
        clean: dict[str, list[float]] = {}
        for one in mine:
            if one["noise"] == "none":
                clean.setdefault(one["data"], []).append(one["called wrong"])
        out[kind] = {
            "cells": len(f1),
            "f1": fmean(f1.values()),
            "cleanlab f1": fmean(other.values()),
            "at or above": sum(f1[cell] >= other[cell] for cell in f1),
            "auc": fmean(cells(some, OURS, "auc").values()),
            "least auc": min(cells(some, OURS, "auc").values()),
            "cleanlab auc": fmean(cells(some, form, "auc").values()),
            "ece": median(means),
            "ece at most 0.05": fmean(value <= 0.05 for value in means),
            "interval holds": fmean(one["share"][1] <= one["rate"] <= one["share"][2] for one in mine),
            "interval width": fmean(one["share"][2] - one["share"][1] for one in mine),
            "called wrong, clean": max(fmean(values) for values in clean.values()) if clean else None,
            "found": fmean(cells(some, OURS, "found").values()),
            "seconds": fmean(one["seconds"] for one in mine),
        }
    return out


def by_noise(outcomes: list[dict]) -> dict[str, dict[str, float]]:
    """Figures of learnt embeddings by noise."""
    out = {}
    for noise in dict.fromkeys(one["noise"] for one in outcomes):
        f1 = {
            tool: [one["f1"] for one in outcomes if (one["noise"], one["tool"]) == (noise, tool)]
            for tool in (LEARNT, OURS, FORM)
        }
        learnt = [one for one in outcomes if (one["noise"], one["tool"]) == (noise, LEARNT)]
        rest = {
            column: fmean(one[column] for one in learnt) for column in ("precision", "recall", "ece", "called wrong")
        }
        out[noise] = {tool: fmean(values) for tool, values in f1.items()} | rest
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["choosing", "report", "glyphs"], default="choosing")
    parser.add_argument("--data", nargs="+", help="only these of the part")
    parser.add_argument("--noise", nargs="+", default=NOISES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="the result as .json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    names = given.data or [name for name, one in SETS.items() if one.part == given.part]
    tools = [OURS, *(CLEANLAB if given.part == "choosing" else [FORM])]
    if given.part == "glyphs":
        tools.append(LEARNT)
    outcomes = run(names, tools, given.noise, range(given.seeds), given.out / "outcomes.jsonl")
    if given.part == "choosing":
        print("best form of cleanlab:", best_form(outcomes))
    found = by_noise(outcomes) if given.part == "glyphs" else summary(outcomes, FORM)
    for name, figures in found.items():
        print(name, {key: value if value is None else round(value, 3) for key, value in figures.items()})
    if given.store:
        content = {
            "command": f"python -m experiments.bench.audit --part {given.part} --seeds {given.seeds}",
            "cleanlab": FORM,
            "results": found,
        }
        given.store.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
