"""``python -m experiments negatives``: which negatives of ArcFace to leave out, by the kind of wrong labels."""

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from robustdml.cache import write_text
from robustdml.command_line import path
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, load_data
from robustdml.methods import METHODS
from robustdml.methods.classes import NegativeOptions, SoftmaxOptions
from robustdml.noise import with_wrong_labels
from robustdml.options import OptionSet
from robustdml.plain_files import read_json
from robustdml.progress import progress_bar
from robustdml.train import train

OWN = "own"
PRISM, ROBUST = "ArcFace behind PRISM", "robust"
LABELS = ("right", "flipped 40 %", "identities split in two", "two identities merged")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--out", type=path, default=Path("out/negatives.json"), help="file of results; run again, it goes on from there"
    )
    parser.add_argument("--data", default="glyphs-large", help="as for robustdml train")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.3, 0.1], help="as --negative-share")
    parser.add_argument(
        "--limits",
        type=lambda text: OWN if text == OWN else float(text),
        nargs="*",
        default=[0.3, 0.4, 0.5, 0.6, OWN],
        help="as --negative-drop-similar; own: --negative-drop-nearer",
    )
    parser.add_argument(
        "--beside",
        nargs="*",
        choices=(PRISM, ROBUST),
        default=(PRISM, ROBUST),
        help="other methods, with the largest of the shares",
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell")
    parser.add_argument("--epochs", type=int, default=TrainingConfig().epochs, help="epochs of each run")


def run(arguments: argparse.Namespace) -> int:
    """Train what is missing, and write it."""
    data = load_data(arguments.data)
    settings = {"data": arguments.data, "epochs": arguments.epochs}
    runs: list[dict[str, Any]] = []
    if arguments.out.exists():
        stored = read_json(arguments.out, "results of negatives; delete it, and all is trained again")
        runs = stored["runs"] if stored["settings"] == settings else []
    ways = [
        *itertools.product(arguments.shares, [None, *arguments.limits]),
        *((max(arguments.shares), name) for name in arguments.beside),
    ]
    cells = list(itertools.product(range(arguments.seeds), LABELS, ways))
    with progress_bar("negatives") as report:
        for number, (seed, labels, (share, limit)) in enumerate(cells):
            cell = {"seed": seed, "labels": labels, "share": share, "limit": limit}
            if any(cell.items() <= run.items() for run in runs):
                continue
            report(f"{labels}, share {share}, limit {limit}, seed {seed}", number, len(cells))
            runs.append(cell | _train(relabelled(data, labels, seed), arguments.epochs, share, limit, seed))
            content = {"settings": settings, "results": {arguments.data: tables(runs)}, "runs": runs}
            write_text(arguments.out, json.dumps(content, indent=1) + "\n")
    return 0


def tables(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds as the stored studies have them: by metric and negatives, one for each kind of labels."""
    kinds = [labels for labels in LABELS if any(run["labels"] == labels for run in runs)]
    found: dict[str, Any] = {"noises": kinds}
    for metric in ("Recall@1", "MAP@R"):
        rows: dict[str, list[float | None]] = {}
        for share, limit in dict.fromkeys((run["share"], run["limit"]) for run in runs):
            dropped = "" if limit is None else f", without cosines above {'the own class' if limit == OWN else limit}"
            cells = (
                [run[metric] for run in runs if (run["labels"], run["share"], run["limit"]) == (k, share, limit)]
                for k in kinds
            )
            name = f"{'all' if share == 1 else f'{share:.0%} of the'} negatives{dropped}"
            name = limit if limit in (PRISM, ROBUST) else name
            rows[name] = [fmean(cell) if cell else None for cell in cells]
        found[metric] = rows
    return found


def relabelled(data: RetrievalData, labels: str, seed: int) -> RetrievalData:
    """The data with training labels of one of the kinds in `LABELS`."""
    train, random = data.train, np.random.default_rng(seed)
    C, names = train.num_classes, train.class_names
    if labels == LABELS[1]:
        return with_wrong_labels(data, "symmetric:0.4", seed)
    if labels == LABELS[2]:  # samples of a class get one of two labels
        halves = 2 * train.labels + random.integers(0, 2, len(train))
        both = tuple(f"{name} {half}" for name in names for half in (1, 2))
        return replace(data, train=replace(train, labels=halves, class_names=both))
    if labels == LABELS[3]:  # two classes have one label
        pairs = random.permutation(C) // 2
        merged = tuple(" and ".join(names[k] for k in np.flatnonzero(pairs == pair)) for pair in range((C + 1) // 2))
        return replace(data, train=replace(train, labels=pairs[train.labels], class_names=merged))
    return data


def _train(data: RetrievalData, epochs: int, share: float, limit: float | str | None, seed: int) -> dict[str, float]:
    config = TrainingConfig(method=ROBUST if limit == ROBUST else "arcface", epochs=epochs, seed=seed)
    if limit != ROBUST:
        similar = limit if isinstance(limit, float) else None
        negatives = NegativeOptions(share=share, drop_similar=similar, drop_nearer=limit == OWN)
        config = replace(config, options=OptionSet(negatives, SoftmaxOptions(correct_negatives=False)))
    if limit == PRISM:
        config = replace(config, filter=replace(METHODS[ROBUST].filter, on_trial=False))
    last = train(config, data, device="cpu", evaluate_each_epoch=False).history[-1]
    return {"Recall@1": last["precision_at_1"], "MAP@R": last["mean_average_precision_at_r"]}
