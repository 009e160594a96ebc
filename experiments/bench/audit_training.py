"""What an audit brings to training: labels as given, and labels dropped or corrected by an audit, for two methods.

    python -m experiments.bench.audit_training --data glyphs --seeds 3 --out out/audit-training

One audit a noise and seed serves all rows that use one. Every outcome is a line of OUT/outcomes.jsonl; the same command
goes on with what is missing, and prints the metrics of unseen classes after the last epoch.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

import experiments.noise  # noqa: F401  (adds noise models)
from robustdml.audit import LabelAuditor
from robustdml.audit_report.findings import findings_of, write_findings
from robustdml.audit_report.learning import learn_embeddings
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.data.dataset import Samples
from robustdml.errors import UsageError
from robustdml.methods import METHODS
from robustdml.networks.preparation import Prepared, prepare
from robustdml.noise import with_wrong_labels
from robustdml.train import train

NOISES = ("none", "symmetric:0.5", "semantic:0.5", "symmetric:0.2", "small-cluster:0.5", "long-tailed:0.5",
          "class-conditional:0.3", "symmetric:0.7", "symmetric:0.05")  # fmt: skip
PLAIN = {"method": "contrastive", "start": "principal"}
# With its filter, and not one that a trial chooses: the rows differ in what is done about labels alone.
ROBUST = {"filter": replace(METHODS["robust"].filter, on_trial=False)}
AUDITED = {"drop": "dropped", "correct": "corrected"}
# Fields of the settings by row; `labels` of rows that use an audit are its file.
ROWS = {
    "plain loss, labels as they are": PLAIN,
    "robust, labels as they are": ROBUST,
    **{f"plain loss, audited and {told}": {**PLAIN, "labels_use": use} for use, told in AUDITED.items()},
    **{f"robust, audited and {told}": {**ROBUST, "labels_use": use} for use, told in AUDITED.items()},
}
METRICS = (("Recall@1", "precision_at_1"), ("MAP@R", "mean_average_precision_at_r"))
MODULE = "python -m experiments.bench.audit_training"


def audit(prepared: Prepared, noise: str, seed: int, folder: Path) -> Path:
    """The file of an audit of the noisy labels; what is there already is taken."""
    file = folder / "labels.csv"
    if file.exists():
        return file
    train_split = prepared.data.train
    labels = with_wrong_labels(prepared.data, noise, seed).train.labels
    used, given = np.unique(labels, return_inverse=True)
    names = tuple(train_split.class_names[label] for label in used)
    samples = Samples(np.asarray(train_split.inputs), given, names, train_split.sample_names, source="bench")
    _, untouched, margins = learn_embeddings(
        samples, np.arange(len(samples)), TrainingConfig(seed=seed), 1, folder, "cpu", lambda *_: None
    )
    auditor = LabelAuditor().fit(untouched, given, margins=margins)
    write_findings(file, findings_of(samples, auditor, np.zeros(len(given), np.int64)))
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--noise", nargs="+", default=NOISES)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="the result as .json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "outcomes.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    prepared = prepare(TrainingConfig(), load_data(given.data), torch.device("cpu"))
    for key in [
        {"data": given.data, "noise": noise, "seed": seed, "row": row}
        for seed in range(given.seeds)
        for noise in given.noise
        for row in given.rows
    ]:
        if any(key.items() <= one.items() for one in done):
            continue
        config = replace(TrainingConfig(seed=key["seed"]), **ROWS[key["row"]])
        try:
            if "audited" in key["row"]:
                folder = given.out / f"{given.data}-{key['noise'].replace(':', '-')}-{key['seed']}"
                config = replace(config, labels=str(audit(prepared, key["noise"], key["seed"], folder)))
            summary = train(
                config, with_wrong_labels(prepared.data, key["noise"], key["seed"]), evaluate_each_epoch=False
            ).summary
        except UsageError as error:
            print(f"{key}: {error}")
            continue
        done.append(key | {name: summary[name] for _, name in METRICS})
        with path.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
    found = means([one for one in done if one["data"] == given.data], given.noise)
    print(json.dumps(found, indent=1))
    if given.store:
        command = f"{MODULE} --data {given.data} --seeds {given.seeds} --noise {' '.join(given.noise)}"
        content = {"command": command, "seeds": given.seeds, "results": {given.data: found}}
        given.store.write_text(json.dumps(content, indent=1) + "\n")


def means(outcomes: list[dict], noises: list[str]) -> dict[str, object]:
    """Both metrics by row, means over the seeds of each noise; None where nothing was measured."""

    def mean(noise: str, row: str, metric: str) -> float | None:
        values = [one[metric] for one in outcomes if (one["noise"], one["row"]) == (noise, row)]
        return round(fmean(values), 4) if values else None

    tables = {title: {row: [mean(noise, row, metric) for noise in noises] for row in ROWS} for title, metric in METRICS}
    return {"noises": noises, **tables}


if __name__ == "__main__":
    main()
