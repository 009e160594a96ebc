"""``python -m experiments demo``: half the labels wrong, four methods, a report; ``--large``: 20,000 classes."""

import argparse
import base64
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from experiments.demo.experiment import run_demo
from experiments.demo.plots import learning_curves
from experiments.demo.report import harm, render
from experiments.demo.timing import Shape
from experiments.large import page as large_page
from experiments.large.contenders import CONTENDERS, QUICK_CONTENDERS, Contender
from experiments.large.experiment import NOISE, Scale, run_missing, untouched
from robustdml.cache import LOCK, sole_use, write_text
from robustdml.command_line import path
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.errors import UsageError
from robustdml.networks.start import NARROWEST
from robustdml.progress import progress_bar

LARGE_EPOCHS, QUICK_EPOCHS = 3, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--out", type=path, default=Path("out"), help="folder for report.html and results.json")
    parser.add_argument("--seeds", type=int, choices=range(1, 21), metavar="N", help="runs of each method; 3")
    parser.add_argument("--epochs", type=int, help=f"epochs of each run; {TrainingConfig().epochs}, or {LARGE_EPOCHS}")
    large = parser.add_argument_group("with 20,000 classes")
    large.add_argument(
        "--large",
        action="store_true",
        help="the same loop with our losses and those of pytorch-metric-learning; run again, it goes on",
    )
    large.add_argument("--data", help="as for robustdml train; hanzi, or hanzi-small with --quick")
    large.add_argument("--quick", action="store_true", help="less data, fewer runs and epochs")
    large.add_argument("--threads", type=int, help="of every process; as many as torch takes")


def way_on(arguments: argparse.Namespace) -> str | None:
    """How an interrupted demo goes on; None where it starts again."""
    return "the same command goes on with what is missing" if arguments.large else None


def run(arguments: argparse.Namespace) -> int:
    """Train, time, and write the report."""
    _check(arguments)
    with sole_use(arguments.out / LOCK, arguments.out):
        return _run_large(arguments) if arguments.large else _run_small(arguments)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.large and arguments.seeds is not None:
        raise UsageError("--seeds: with --large there is one run of each loss")
    for name in ("data", "quick", "threads"):
        if getattr(arguments, name) and not arguments.large:
            raise UsageError(f"--{name} is for --large")
    for name in ("epochs", "threads"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"{name}={value}: expected at least 1")


def _run_small(arguments: argparse.Namespace) -> int:
    seeds, epochs = arguments.seeds or 3, arguments.epochs or TrainingConfig().epochs
    with progress_bar("demo") as report:
        report("glyphs", 0, 0)
        outcome = run_demo(load_data("glyphs"), seeds, epochs, Shape(), report)
    summaries = [run.summary for runs in outcome.runs.values() for run in runs]
    results = {
        "frozen_features": outcome.frozen_metrics,
        "runs": summaries,
        "times": [vars(t) for t in outcome.timings],
    }
    write_text(arguments.out / "results.json", json.dumps(results, indent=2) + "\n")
    write_text(arguments.out / "report.html", render(outcome))
    curves = learning_curves(outcome.runs, outcome.frozen_metrics["precision_at_1"])
    write_text(arguments.out / "learning-curves.svg", base64.b64decode(curves.partition(",")[2]).decode())
    for line in harm(outcome):
        print(line)
    print(f"{arguments.out / 'report.html'}: written in {outcome.seconds:.0f} s; open it in a browser")
    return 0


def _run_large(arguments: argparse.Namespace) -> int:
    quick, out = arguments.quick, arguments.out
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    scale = Scale(
        epochs=arguments.epochs or (QUICK_EPOCHS if quick else LARGE_EPOCHS),
        embedding_size=NARROWEST,
        threads=torch.get_num_threads(),
    )
    with progress_bar("demo") as report:
        data = load_data(arguments.data or ("hanzi-small" if quick else "hanzi"))
        files, scores = untouched(data, report)
    print(f"untouched features of {data.name}: Recall@1 {scores['precision_at_1']:.3f}", flush=True)
    contenders = QUICK_CONTENDERS if quick else CONTENDERS
    results = run_missing(contenders, files, data.name, scale, out / "runs", _tell)
    outcome = large_page.LargeOutcome(
        data_line=(
            f"{data.name}: {len(data.train):,} training samples of {data.train.num_classes:,} classes, half of them "
            f"with the label of another class ({NOISE}), tested on {len(data.test):,} samples of "
            f"{data.test.num_classes:,} other classes. {scale.epochs} epochs, batches of "
            f"{TrainingConfig().batch_size}, embeddings of size {scale.embedding_size}."
        ),
        untouched=scores,
        results=results,
        machine=(
            f"Python {platform.python_version()}, PyTorch {torch.__version__}, {scale.threads} threads, "
            f"{os.cpu_count()} cores."
        ),
    )
    write_text(out / "large.json", json.dumps({"untouched": scores, "runs": results}, indent=1) + "\n")
    write_text(out / "large.html", large_page.render(outcome))
    print("\n".join(large_page.comparisons(results)))
    print(f"{out / 'large.html'}: written; open it in a browser")
    return 0


def _tell(contender: Contender, result: dict[str, Any]) -> None:
    """Print a line when a contender is done."""
    extra = result["extra_bytes"]
    print(
        f"{contender.title} ({contender.whose}): {result['seconds'] / 60:.1f} min, "
        f"{1e3 * result['step_seconds']:.1f} ms a step, {'?' if extra is None else f'{extra / 2**20:,.0f}'} MB extra, "
        f"Recall@1 {result['history'][-1]['precision_at_1']:.3f}",
        flush=True,
    )
