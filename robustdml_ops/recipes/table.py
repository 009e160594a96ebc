"""``robustdml table``: methods against noise rates over several seeds, as JSON and as a Markdown table."""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from robustdml_ops.recipes.cache import write_text
from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import RetrievalData, load_data
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.methods import METHODS
from robustdml_ops.recipes.preparation import prepare, resolve_device
from robustdml_ops.recipes.progress import OnProgress, progress_bar, silent
from robustdml_ops.recipes.train import train


@dataclass(frozen=True)
class Cell:
    """What one method reaches at one noise rate.

    Attributes
    ----------
    method, noise : str
        Which.
    recall_at_1, map_at_r, auc : list of float
        One value a seed: retrieval on the test classes at the last epoch, and how well the confidence of the given
        label tells right labels from wrong ones (empty where there is none).
    seconds : list of float
        Time of each run.
    """

    method: str
    noise: str
    recall_at_1: list[float]
    map_at_r: list[float]
    auc: list[float]
    seconds: list[float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Of the command.
    """
    parser.add_argument("--out", type=Path, default=Path("out/table"), help="folder for table.json and table.md")
    parser.add_argument("--data", default="glyphs", help="as for robustdml train")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="rows")
    parser.add_argument(
        "--noise", nargs="+", default=["none", "symmetric:0.3", "symmetric:0.5"], help="columns, as for robustdml train"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell, with seeds 0, 1, …")
    parser.add_argument("--epochs", type=int, default=TrainingConfig().epochs, help="epochs of each run")
    parser.add_argument("--finetune", action="store_true", help="train the backbone too, rather than one layer")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")


def run(arguments: argparse.Namespace) -> int:
    """Fill the table, print it and write it.

    Parameters
    ----------
    arguments : Namespace
        Parsed options.

    Returns
    -------
    int
        0.
    """
    if arguments.seeds < 1:
        raise UsageError(f"seeds={arguments.seeds}: expected at least 1")
    base = TrainingConfig(epochs=arguments.epochs, finetune=arguments.finetune)
    configs = [replace(base, method=method, noise=noise) for method in arguments.methods for noise in arguments.noise]
    with progress_bar("table") as report:
        data = load_data(arguments.data)
        if data.train.is_images and not base.finetune:
            data = prepare(base, data, resolve_device(arguments.device), report).data
        cells = [fill_cell(config, data, arguments.seeds, arguments.device, report) for config in configs]
    text = markdown(cells)
    content = {"data": arguments.data, "epochs": base.epochs, "finetune": base.finetune, "cells": [*map(asdict, cells)]}
    write_text(arguments.out / "table.json", json.dumps(content, indent=2) + "\n")
    write_text(arguments.out / "table.md", text)
    print(text, end="")
    return 0


def fill_cell(
    config: TrainingConfig, data: RetrievalData, seeds: int, device: str = "auto", on_progress: OnProgress = silent
) -> Cell:
    """Train one method at one noise rate with several seeds.

    Parameters
    ----------
    config : TrainingConfig
        Settings; the seed is set here.
    data : RetrievalData
        What to train on.
    seeds : int
        How many seeds, from 0.
    device : str
        As in `train`.
    on_progress : callable
        Told before each run: what, runs done, runs in all.

    Returns
    -------
    Cell
        The results.
    """
    cell = Cell(config.method, config.noise, [], [], [], [])
    for seed in range(seeds):
        on_progress(f"{METHODS[config.method].title}, {config.noise}", seed, seeds)
        summary = train(replace(config, seed=seed), data, device=device).summary
        cell.recall_at_1.append(summary["precision_at_1"])
        cell.map_at_r.append(summary["mean_average_precision_at_r"])
        cell.seconds.append(summary["training_seconds"])
        if summary.get("confidence_auc") is not None:
            cell.auc.append(summary["confidence_auc"])
    return cell


def mean_and_error(values: Sequence[float]) -> str:
    """Write a mean and its standard error, for people to read.

    Parameters
    ----------
    values : sequence of float
        One value a seed.

    Returns
    -------
    str
        ``0.546 ± 0.003``, the mean alone for one value, ``–`` for none.
    """
    if not values:
        return "–"
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def markdown(cells: Sequence[Cell]) -> str:
    """Lay the cells out: a row a method, a column a noise rate, Recall@1 in the cells.

    Parameters
    ----------
    cells : sequence of Cell
        In any order.

    Returns
    -------
    str
        A Markdown table.
    """
    noises = list(dict.fromkeys(cell.noise for cell in cells))
    lines = [f"| Recall@1 | {' | '.join(noises)} |", "|---" * (len(noises) + 1) + "|"]
    for method in dict.fromkeys(cell.method for cell in cells):
        of_noise = {cell.noise: cell for cell in cells if cell.method == method}
        values = [mean_and_error(of_noise[noise].recall_at_1) if noise in of_noise else "–" for noise in noises]
        lines.append(f"| {METHODS[method].title} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"
