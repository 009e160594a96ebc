"""``robustdml compare``: every method against every noise over several seeds, side by side, and on one page."""

import argparse
import json
import sys
from pathlib import Path

import torch

from robustdml_ops.recipes.cache import write_text
from robustdml_ops.recipes.command_line import path
from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import load_data
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.evidence.comparison.ablations import ALL_ENTRIES
from robustdml_ops.recipes.evidence.comparison.cells import all_cells
from robustdml_ops.recipes.evidence.comparison.claims import claim_cells
from robustdml_ops.recipes.evidence.comparison.entries import ENTRIES, NOISES, QUICK_ENTRIES, QUICK_NOISES
from robustdml_ops.recipes.evidence.comparison.page import markdown, page
from robustdml_ops.recipes.evidence.comparison.pool import default_workers, run_missing
from robustdml_ops.recipes.evidence.comparison.results import Results
from robustdml_ops.recipes.networks.preparation import prepare, resolve_device
from robustdml_ops.recipes.progress import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Of the command.
    """
    parser.add_argument(
        "--out", type=path, default=Path("out/compare"), help="folder; run again, it goes on from there"
    )
    parser.add_argument("--data", default="glyphs", help="as for robustdml train")
    parser.add_argument("--quick", action="store_true", help="fewer methods and noises, two seeds")
    parser.add_argument(
        "--methods", nargs="+", choices=ALL_ENTRIES, metavar="NAME", help=f"rows, of {', '.join(ALL_ENTRIES)}"
    )
    parser.add_argument("--noise", nargs="+", metavar="NOISE", help="columns, as for robustdml train")
    parser.add_argument("--seeds", type=int, help="runs of each cell, with seeds 0, 1, …; 3, or 2 with --quick")
    parser.add_argument("--epochs", type=int, default=TrainingConfig().epochs, help="epochs of each run")
    parser.add_argument("--workers", type=int, default=default_workers(), help="runs side by side")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")


def way_on(arguments: argparse.Namespace) -> str:
    """Say how a comparison that was interrupted goes on.

    Parameters
    ----------
    arguments : Namespace
        Parsed options.

    Returns
    -------
    str
        The way.
    """
    return "the same command goes on with what is missing"


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing, then write and print the tables.

    Parameters
    ----------
    arguments : Namespace
        Parsed options.

    Returns
    -------
    int
        0, or 1 if a run failed.
    """
    seeds = arguments.seeds if arguments.seeds is not None else 2 if arguments.quick else 3
    for name, value in (("seeds", seeds), ("workers", arguments.workers)):
        if value < 1:
            raise UsageError(f"{name}={value}: expected at least 1")
    names = arguments.methods or (QUICK_ENTRIES if arguments.quick else ENTRIES)
    noises = arguments.noise or (QUICK_NOISES if arguments.quick else NOISES)
    cells = all_cells([ALL_ENTRIES[name] for name in names], noises, seeds, arguments.epochs)
    if not arguments.methods and not arguments.quick:
        cells += claim_cells(arguments.noise, seeds, arguments.epochs, cells)
    for cell in cells:
        cell.config  # noqa: B018  settings that are wrong are told before the first run
    with progress_bar("compare") as report:
        data = load_data(arguments.data)
        if data.train.is_images:
            data = prepare(TrainingConfig(), data, resolve_device(arguments.device), report).data
        failures = run_missing(cells, data, arguments.out, arguments.device, arguments.workers, report)
    results = Results.read(cells, arguments.out, data.name)
    text = markdown(results)
    description = (
        f"{data.name}: {len(data.train):,} training samples of {data.train.num_classes} classes, {len(data.test):,} "
        f"test samples of {data.test.num_classes} others; {arguments.epochs} epochs, {seeds} seeds. "
        f"PyTorch {torch.__version__}, {arguments.workers} runs side by side."
    )
    write_text(arguments.out / "compare.json", json.dumps(results.as_json(), indent=1) + "\n")
    write_text(arguments.out / "compare.md", f"{description}\n\n{text}")
    write_text(arguments.out / "compare.html", page(results, description))
    print(text)
    print(f"page: {arguments.out / 'compare.html'}")
    for cell, message in failures.items():
        print(
            f"robustdml compare: {cell.entry.name}, {cell.noise}, seed {cell.seed} failed: {message}", file=sys.stderr
        )
    return 1 if failures else 0
