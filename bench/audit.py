"""Wrong labels found by ``robustdml audit``, by its auditor on the untouched features, and by others.

    python -m bench.audit --data glyphs --seeds 3 --out out/audit

Every outcome is a line of OUT/outcomes.jsonl; the same command goes on with what is missing, and prints the table.
Needs ``pip install 'robustdml_ops[audit]'``.
"""

import argparse
import json
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from robustdml_ops.audit import LabelAuditor
from robustdml_ops.audit.features import principal_rows
from robustdml_ops.recipes.audit.learning import learn_embeddings
from robustdml_ops.recipes.audit.samples import AuditSamples
from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import Split, load_data
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.networks.preparation import prepare
from robustdml_ops.recipes.run.noisy_labels import noisy_labels

NOISES = (
    "none",
    "symmetric:0.5",
    "semantic:0.5",
    "symmetric:0.05",
    "small-cluster:0.5",
    "symmetric:0.1",
    "symmetric:0.02",
    "symmetric:0.2",
    "symmetric:0.7",
    "long-tailed:0.5",
    "class-conditional:0.3",
)
FOLDS = 5
NEIGHBOURS = 20
BINS = 10
# What a tool says: how right each label is, which are wrong, and what they should be (None where it does not say).
Answer = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def robust_audit(features, labels, num_classes, seed) -> Answer:
    names = [str(place) for place in range(len(labels))]
    classes = tuple(str(label) for label in range(num_classes))
    samples = AuditSamples("bench", names, labels, classes, features)
    with tempfile.TemporaryDirectory() as folder:
        learnt = learn_embeddings(samples, TrainingConfig(seed=seed), 1, Path(folder), "cpu", lambda *_: None)
    return audit_of_features(learnt, labels, num_classes, seed)


def audit_of_features(features, labels, num_classes, seed) -> Answer:
    auditor = LabelAuditor().fit(features, labels)
    return auditor.label_quality_, auditor.issues_, auditor.proposed_labels_


def _cleanlab(probabilities, labels, by) -> Answer:
    from cleanlab.filter import find_label_issues  # of the extra [audit], which this bench alone needs
    from cleanlab.rank import get_label_quality_scores

    issues = find_label_issues(labels, probabilities, filter_by=by, n_jobs=1)
    return get_label_quality_scores(labels, probabilities), issues, probabilities.argmax(1)


def _logistic(features, labels, seed):
    # Of C = 0.3, 3 and 30 the best on validation letters: AUC 0.936, 0.986 and 0.976 with half of the labels wrong.
    model = LogisticRegression(C=3, max_iter=100)
    return cross_val_predict(model, principal_rows(features).numpy(), labels, cv=FOLDS, method="predict_proba")


def _neighbours(features, labels):
    rows = features / np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
    model = KNeighborsClassifier(NEIGHBOURS, metric="cosine", algorithm="brute")
    return cross_val_predict(model, rows, labels, cv=FOLDS, method="predict_proba")


def cleanlab_logistic(features, labels, num_classes, seed) -> Answer:
    return _cleanlab(_logistic(features, labels, seed), labels, "prune_by_noise_rate")


def confident_learning(features, labels, num_classes, seed) -> Answer:
    return _cleanlab(_logistic(features, labels, seed), labels, "confident_learning")


def cleanlab_neighbours(features, labels, num_classes, seed) -> Answer:
    return _cleanlab(_neighbours(features, labels), labels, "prune_by_noise_rate")


def neighbours_vote(features, labels, num_classes, seed) -> Answer:
    probabilities = _neighbours(features, labels)
    voted = probabilities.argmax(1)
    return probabilities[np.arange(len(labels)), labels], voted != labels, voted


TOOLS: dict[str, Callable[..., Answer]] = {
    "robustdml audit": robust_audit,
    "LabelAuditor, untouched features": audit_of_features,
    "cleanlab, logistic regression in 5 folds": cleanlab_logistic,
    "confident learning, the same regression": confident_learning,
    "cleanlab, 20 neighbours": cleanlab_neighbours,
    "vote of 20 neighbours": neighbours_vote,
}


def measure(tool: str, features, labels, truth, num_classes: int, seed: int) -> dict[str, float]:
    start = time.perf_counter()
    quality, issues, proposed = TOOLS[tool](features, labels, num_classes, seed)
    seconds = time.perf_counter() - start
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
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / max(precision + recall, 1e-12),
        "flagged": float(issues.mean()),
        "proposals": float((proposed == truth)[issues & wrong].mean()) if hits else float("nan"),
        "ece": sum(abs(said - was) * count for said, was, count in reliability) / len(labels),
        "reliability": reliability,
        "seconds": seconds,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--noise", nargs="+", default=NOISES)
    parser.add_argument("--tools", nargs="+", default=list(TOOLS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--diagram", type=Path, help="an .svg file of how far the probabilities of the first tool hold")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "outcomes.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    prepared = prepare(TrainingConfig(), load_data(given.data), torch.device("cpu"))
    train: Split = prepared.data.train
    features = np.asarray(train.inputs, dtype=np.float32)
    for seed in range(given.seeds):
        for noise in given.noise:
            config = TrainingConfig(noise=noise, seed=seed)
            try:
                labels, _ = noisy_labels(config, prepared)
            except UsageError:
                continue
            # Small-cluster noise dissolves classes: those that are left are numbered anew, the others are no answer.
            used, given_labels = np.unique(labels, return_inverse=True)
            number = np.full(train.num_classes, -1)
            number[used] = np.arange(len(used))
            truth = number[train.labels]
            for tool in given.tools:
                key = {"data": given.data, "noise": noise, "seed": seed, "tool": tool}
                if any(key.items() <= one.items() for one in done):
                    continue
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        outcome = key | measure(tool, features, given_labels, truth, len(used), seed)
                except ValueError as error:
                    print(f"{noise}, seed {seed}, {tool}: {error}")
                    continue
                done.append(outcome)
                with path.open("a") as file:
                    file.write(json.dumps(outcome) + "\n")
    print_tables(done)
    if given.diagram:
        draw_reliability([one for one in done if one["tool"] == given.tools[0]], given.diagram)


def print_tables(outcomes: list[dict]) -> None:
    columns = ("auc", "precision", "recall", "f1", "flagged", "proposals", "ece", "seconds")
    for data in dict.fromkeys(one["data"] for one in outcomes):
        for noise in dict.fromkeys(one["noise"] for one in outcomes if one["data"] == data):
            print(f"\n### {data}, {noise}\n\n| tool | seeds | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
            for tool in TOOLS:
                cells = [one for one in outcomes if (one["data"], one["noise"], one["tool"]) == (data, noise, tool)]
                if cells:
                    means = [np.mean([one[column] for one in cells]) for column in columns]
                    shown = [
                        "–" if np.isnan(v) else f"{v:.1f}" if c == "seconds" else f"{v:.3f}"
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
