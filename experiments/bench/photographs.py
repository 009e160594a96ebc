"""Photographs with wrong labels: what an audit finds and what it brings to training, beside a plain loop and cleanlab.

    python -m experiments.bench.photographs --seeds 3 --out out/photographs

The data set is `experiments.data.stamps`; test classes are others than those of training. The plain loop trains a
linear layer on frozen features with Proxy-Anchor at the paper's settings. Outcomes are lines of OUT/outcomes.jsonl; the
same command goes on with what is missing.
Needs ``pip install cleanlab`` and ``apt install tuxpaint-stamps-default``.
"""

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.bench.audit import FORM
from experiments.bench.audit_tools import CLEANLAB, MODELS, cleanlab
from experiments.bench.audit_training import METRICS, audit
from experiments.bench.outcomes import resumed
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.networks.preparation import Prepared, prepare
from robustdml.noise import with_wrong_labels
from robustdml.retrieval import retrieval_metrics
from robustdml.train import train

NOISES = ("none", "symmetric:0.3", "symmetric:0.5", "semantic:0.3")
UNTOUCHED, PLAIN, ROBUST = "untouched features", "plain loop", "`robustdml train`"
AUDIT, PEER = "`robustdml audit`", "cleanlab"
# Method and whose suspects are left out.
ROWS = {
    PLAIN: ("proxy-anchor", ""),
    f"{PLAIN}, without cleanlab's suspects": ("proxy-anchor", PEER),
    f"{PLAIN}, after {AUDIT}": ("proxy-anchor", AUDIT),
    ROBUST: ("robust", ""),
    f"{ROBUST}, without cleanlab's suspects": ("robust", PEER),
    f"{ROBUST}, after {AUDIT}": ("robust", AUDIT),
}


def suspects_of_audit(prepared: Prepared, noise: str, seed: int, folder: Path) -> NDArray[np.bool_]:
    """What `robustdml apply` leaves out."""
    with audit(prepared, noise, seed, folder).open() as file:
        return np.array([row["verdict"] in ("wrong", "belongs to no class") for row in csv.DictReader(file)])


def suspects_of_cleanlab(features: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """What cleanlab calls an issue, in the form that was best on other data."""
    _, given = np.unique(labels, return_inverse=True)
    model, by = CLEANLAB[FORM]
    return cleanlab(given, MODELS[model](features, given), by).issues


def measure(prepared: Prepared, noise: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Recall@1 and MAP@R of the test classes by row, and what the two audits found."""
    folder.mkdir(parents=True, exist_ok=True)
    data = with_wrong_labels(prepared.data, noise, seed)
    wrong = data.train.labels != prepared.data.train.labels
    inputs = np.asarray(data.train.inputs, np.float32)
    suspects = {
        AUDIT: suspects_of_audit(prepared, noise, seed, folder),
        PEER: suspects_of_cleanlab(inputs, data.train.labels),
        "": np.zeros(len(wrong), bool),
    }
    untouched = retrieval_metrics(data.test.inputs, data.test.labels)
    rows = [{"row": UNTOUCHED} | {title: float(untouched[name]) for title, name in METRICS}]
    for row, (method, by) in ROWS.items():
        kept = replace(data, train=data.train.subset(np.flatnonzero(~suspects[by])))
        config = TrainingConfig(method=method, seed=seed)
        summary = train(config, kept, evaluate_each_epoch=False).summary
        rows.append({"row": row} | {title: summary[name] for title, name in METRICS})
    for tool in (AUDIT, PEER):
        found, hits = int(suspects[tool].sum()), int((suspects[tool] & wrong).sum())
        shares = {"found": hits / max(int(wrong.sum()), 1), "right ones": float(suspects[tool][~wrong].mean())}
        rows.append({"row": tool} | shares | {"f1": 2 * hits / max(found + int(wrong.sum()), 1)})
    return rows


def means(outcomes: list[dict[str, Any]], columns: list[str], rows: list[str]) -> dict[str, dict[str, list[float]]]:
    """Means over the seeds, by column and row for each noise."""
    return {
        column: {
            row: [
                round(fmean(one[column] for one in outcomes if (one["noise"], one["row"]) == (noise, row)), 4)
                for noise in NOISES
            ]
            for row in rows
        }
        for column in columns
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="stamps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="the result as .json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    prepared = prepare(TrainingConfig(), load_data(given.data), torch.device("cpu"))
    keys = [{"noise": noise, "seed": seed} for seed in range(given.seeds) for noise in NOISES]
    outcomes = resumed(
        given.out / "outcomes.jsonl",
        keys,
        lambda noise, seed: measure(prepared, noise, seed, given.out / f"{noise.replace(':', '-')}-{seed}"),
    )
    result = means(outcomes, [title for title, _ in METRICS], [UNTOUCHED, *ROWS])
    result |= means(outcomes, ["found", "right ones", "f1"], [AUDIT, PEER])
    print(json.dumps(result, indent=1))
    if given.store:
        command = f"python -m experiments.bench.photographs --data {given.data} --seeds {given.seeds}"
        content = {"command": command, "seeds": given.seeds, "cleanlab": FORM, "noises": NOISES, "results": result}
        given.store.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
