"""Wrong labels found by ``robustdml audit``, by its auditor on the untouched features, and by others.

    python -m experiments.bench.audit --data glyphs --seeds 3 --out out/audit

Every outcome is a line of OUT/outcomes.jsonl; the same command goes on with what is missing, and prints the table.
Needs ``pip install 'robustdml_ops[audit]' 'cleanlab[datalab]'``. Every cell is a process of its own: the megabytes are
the most that it held, Python and all packages among them.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from experiments.bench.audit_tools import TOOLS, Answer, Outcome, run_tools
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.errors import UsageError
from robustdml.networks.preparation import Prepared, prepare
from robustdml.noise import with_wrong_labels

NOISES = (
    "none",
    "symmetric:0.02",
    "symmetric:0.05",
    "symmetric:0.1",
    "symmetric:0.2",
    "symmetric:0.5",
    "symmetric:0.7",
    "small-cluster:0.5",
    "semantic:0.5",
    "long-tailed:0.5",
    "class-conditional:0.3",
)
BINS = 10


def measure(answer: Answer, labels: np.ndarray, truth: np.ndarray) -> dict[str, object]:
    quality, issues, proposed = answer
    wrong = labels != truth
    hits = int((issues & wrong).sum())
    precision, recall = hits / max(int(issues.sum()), 1), hits / max(int(wrong.sum()), 1)
    groups = np.minimum((quality * BINS).astype(int), BINS - 1)
    reliability = [
        [float(quality[groups == group].mean()), float((~wrong)[groups == group].mean()), int((groups == group).sum())]
        for group in np.unique(groups)
    ]
    return {
        "auc": float(roc_auc_score(~wrong, quality)) if wrong.any() else float("nan"),
        "precision": precision if wrong.any() else float("nan"),
        "recall": recall if wrong.any() else float("nan"),
        "f1": 2 * precision * recall / max(precision + recall, 1e-12) if wrong.any() else float("nan"),
        "flagged": float(issues.mean()),
        "proposals": float((proposed == truth)[issues & wrong].mean()) if hits else float("nan"),
        "ece": sum(abs(said - was) * count for said, was, count in reliability) / len(labels),
        "reliability": reliability,
    }


def noisy(prepared: Prepared, noise: str, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Labels given and true ones, in one numbering; None where the data cannot have such noise."""
    train = prepared.data.train
    try:
        labels = with_wrong_labels(prepared.data, noise, seed).train.labels
    except UsageError:
        return None
    # Small-cluster noise dissolves classes: those that are left are numbered anew, the others are no answer.
    used, given = np.unique(labels, return_inverse=True)
    number = np.full(train.num_classes, -1)
    number[used] = np.arange(len(used))
    return given, number[train.labels]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--noise", nargs="+", default=NOISES)
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=list(TOOLS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--diagram", type=Path, help="an .svg file of how far the probabilities of the first tool hold")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "outcomes.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    prepared = prepare(TrainingConfig(), load_data(given.data), torch.device("cpu"))
    features = given.out / f"{given.data}.npy"
    np.save(features, np.asarray(prepared.data.train.inputs, dtype=np.float32))
    # Processes that begin without what this one holds.
    processes = get_context("forkserver")
    processes.set_forkserver_preload(["experiments.bench.audit_tools"])
    for key in [
        {"data": given.data, "noise": noise, "seed": seed} for seed in range(given.seeds) for noise in given.noise
    ]:
        left = [name for name in given.tools if not any((key | {"tool": name}).items() <= one.items() for one in done)]
        case = noisy(prepared, key["noise"], key["seed"]) if left else None
        if case is None:
            continue
        for _, names in groupby(sorted(left, key=_basis), _basis):
            with ProcessPoolExecutor(1, processes) as pool:
                outcomes = pool.submit(run_tools, list(names), features, case[0], key["seed"]).result()
            for name, outcome in outcomes.items():
                if not isinstance(outcome, Outcome):
                    print(f"{key['noise']}, seed {key['seed']}, {name}: {outcome}")
                    continue
                took = {"seconds": outcome.seconds, "megabytes": outcome.megabytes}
                done.append(key | {"tool": name} | measure(outcome.answer, *case) | took)
                with path.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    print_tables(done)
    if given.diagram:
        draw_reliability([one for one in done if one["tool"] == given.tools[0]], given.diagram)


def _basis(tool: str) -> str:
    # Of tools that share none, each is alone: memory is that of the process.
    basis = TOOLS[tool].basis.__name__
    return tool if basis == "untouched" else basis


def print_tables(outcomes: list[dict]) -> None:
    columns = ("auc", "precision", "recall", "f1", "flagged", "proposals", "ece", "seconds", "megabytes")
    for data in dict.fromkeys(one["data"] for one in outcomes):
        for noise in dict.fromkeys(one["noise"] for one in outcomes if one["data"] == data):
            print(f"\n### {data}, {noise}\n\n| tool | seeds | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
            for tool in TOOLS:
                cells = [one for one in outcomes if (one["data"], one["noise"], one["tool"]) == (data, noise, tool)]
                if cells:
                    means = [np.mean([one[column] for one in cells]) for column in columns]
                    shown = [
                        "–" if np.isnan(v) else f"{v:.0f}" if c in ("seconds", "megabytes") else f"{v:.3f}"
                        for c, v in zip(columns, means, strict=True)
                    ]
                    print(f"| {tool} | {len(cells)} | {' | '.join(shown)} |")


def draw_reliability(outcomes: list[dict], path: Path) -> None:
    noises = [noise for noise in dict.fromkeys(one["noise"] for one in outcomes) if noise != "none"]
    figure = Figure(figsize=(12, 6), layout="constrained")
    axes = figure.subplots(2, -(-len(noises) // 2), sharex=True, sharey=True, squeeze=False)
    for ax, noise in zip(axes.flat, noises, strict=False):
        cells = [one for one in outcomes if one["noise"] == noise]
        ax.plot([0, 1], [0, 1], color="#8a8f98", linewidth=1)
        for one in cells:
            said, was, count = np.array(one["reliability"]).T
            ax.plot(said, was, color="#0072b2", linewidth=1)
            ax.scatter(said, was, 300 * count / count.sum() + 4, color="#0072b2")
        ax.set_title(f"{noise}, ECE {np.mean([one['ece'] for one in cells]):.3f}", fontsize=10)
    for ax in axes.flat[len(noises) :]:
        ax.set_axis_off()
    figure.supxlabel("probability that the label is right")
    figure.supylabel("share of right labels")
    figure.savefig(path)


if __name__ == "__main__":
    main()
