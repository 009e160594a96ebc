"""``robustdml demo``: half the labels wrong, four methods, one report."""

import argparse
import base64
import json
from pathlib import Path

from robustdml_ops.recipes.cache import write_text
from robustdml_ops.recipes.command_line import path
from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import load_data
from robustdml_ops.recipes.evidence.demo.experiment import run_demo
from robustdml_ops.recipes.evidence.demo.plots import learning_curves
from robustdml_ops.recipes.evidence.demo.report import harm, render
from robustdml_ops.recipes.evidence.demo.timing import Shape
from robustdml_ops.recipes.progress import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Of the command.
    """
    parser.add_argument("--out", type=path, default=Path("out"), help="folder for report.html and results.json")
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, 21), metavar="N", help="runs of each method")
    parser.add_argument("--epochs", type=int, default=TrainingConfig().epochs, help="epochs of each run")


def run(arguments: argparse.Namespace) -> int:
    """Train, time, and write the report.

    Parameters
    ----------
    arguments : Namespace
        Parsed options.

    Returns
    -------
    int
        0.
    """
    with progress_bar("demo") as report:
        report("glyphs", 0, 0)
        outcome = run_demo(load_data("glyphs"), arguments.seeds, arguments.epochs, Shape(), report)
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
