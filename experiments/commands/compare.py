"""``python -m experiments compare``: every method under every noise, over several seeds and data sets."""

import argparse
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from experiments import PROGRAM
from experiments.comparison.ablations import ALL_ENTRIES
from experiments.comparison.cells import Cell, all_cells
from experiments.comparison.claims import claim_cells
from experiments.comparison.outcomes import check_outcomes
from experiments.comparison.plan import SUITE, SUITE_VALIDATION, Plan, expand_names, make_plan
from experiments.comparison.pool import default_workers, run_missing
from experiments.comparison.results import Results
from experiments.comparison.section import Section, markdown, page
from experiments.comparison.sources import Sources, impossible_noises, open_sources
from experiments.comparison.tables import sections as sections_of_data
from experiments.statistics.sections import sections as sections_of_suite
from experiments.statistics.suite import Suite
from robustdml.cache import LOCK, sole_use, write_text
from robustdml.command_line import path
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.errors import UsageError
from robustdml.networks.preparation import resolve_device
from robustdml.progress import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--out", type=path, default=Path("out/compare"), help="folder; run again, it goes on from there"
    )
    parser.add_argument(
        "--data", nargs="+", default=["glyphs"], metavar="DATA",
        help=f"data sets, each as for robustdml train; {SUITE}: all of the suite, {SUITE_VALIDATION}: those to choose "
        "settings by",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer methods, noises, seeds, and data sets of the suite")
    parser.add_argument(
        "--methods", nargs="+", choices=[SUITE, *ALL_ENTRIES], metavar="NAME",
        help=f"rows, of {', '.join(ALL_ENTRIES)}; {SUITE}: those of the suite, as by default for several data sets",
    )  # fmt: skip
    parser.add_argument("--noise", nargs="+", metavar="NOISE", help="columns, as for robustdml train")
    parser.add_argument(
        "--seeds", type=int,
        help="runs of each cell, with seeds 0, 1, …; 3, or 2 with --quick",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, default=TrainingConfig().epochs, help="epochs of each run")
    parser.add_argument("--finetune", action="store_true", help="train the backbones of images as well")
    parser.add_argument(
        "--backbone", default="", metavar="NAME",
        help="with --finetune: what trains, as for robustdml train (default: the one that goes with the data)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=default_workers(), help="runs side by side")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")


def way_on(arguments: argparse.Namespace) -> str:
    """How an interrupted comparison goes on."""
    return "the same command goes on with what is missing"


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing, then write and print the tables."""
    out: Path = arguments.out
    names = expand_names(arguments.data, arguments.quick)
    plan = make_plan(len(names) > 1, arguments.quick, arguments.methods, arguments.noise, arguments.seeds)
    for name, value in (("seeds", plan.seeds), ("workers", arguments.workers)):
        if value < 1:
            raise UsageError(f"{name}={value}: expected at least 1")
    common = _common_settings(arguments)
    for cell in all_cells({"": plan.noises}, plan.entries, 1, common):
        cell.config  # noqa: B018  raises on wrong settings before the first run
    check_outcomes(out)
    with sole_use(out / LOCK, out):
        return _run(arguments, names, plan, common, out)


def _run(arguments: argparse.Namespace, names: list[str], plan: Plan, common: TrainingConfig, out: Path) -> int:
    with progress_bar("compare") as report:
        sources = open_sources(names, common, resolve_device(arguments.device), report)
        left_out = {
            name: impossible_noises(source, plan.noises, common, out) for name, source in sources.opened.items()
        }
        cells = _cells(plan, left_out, arguments.noise, common)
        failures = run_missing(cells, sources.opened, out, arguments.device, arguments.workers, report)
    results = {name: Results.read([cell for cell in cells if cell.data == name], out) for name in sources.opened}
    _write(results, _description(sources, common, plan.seeds, arguments.workers), out)
    told = [
        *(f"data {name} left out: {reason}" for name, reason in sources.missing.items()),
        *(f"{name}, {noise} left out: {why}" for name, noises in left_out.items() for noise, why in noises.items()),
        *(f"{cell.title} failed: {message}" for cell, message in failures.items()),
    ]
    for line in told:
        print(f"{PROGRAM} compare: {line}", file=sys.stderr)
    return 1 if failures or sources.missing else 0


def _common_settings(arguments: argparse.Namespace) -> TrainingConfig:
    if arguments.backbone and not arguments.finetune:
        raise UsageError(
            f"--backbone {arguments.backbone} is for --finetune: without it the features come from the network that "
            "goes with the data"
        )
    return TrainingConfig(epochs=arguments.epochs, finetune=arguments.finetune, backbone=arguments.backbone)


def _cells(
    plan: Plan,
    left_out: Mapping[str, Mapping[str, str]],
    noises_asked_for: Sequence[str] | None,
    common: TrainingConfig,
) -> list[Cell]:
    noises = {name: [noise for noise in plan.noises if noise not in reasons] for name, reasons in left_out.items()}
    cells = all_cells(noises, plan.entries, plan.seeds, common)
    if not cells:
        raise UsageError("; ".join(f"{name}: {why}" for name, reasons in left_out.items() for why in reasons.values()))
    if plan.with_claims:
        (data,) = left_out
        cells += claim_cells(data, noises_asked_for, plan.seeds, common, cells)
    return cells


def _description(sources: Sources, common: TrainingConfig, seeds: int, workers: int) -> str:
    sizes = "; ".join(_sizes(source.open()) for source in sources.opened.values())
    network = f", the network trained as a whole ({common.backbone or 'from its trained state'})"
    runs = f"{common.epochs} epochs, {seeds} seeds{network if common.finetune else ''}"
    return f"{sizes}; {runs}. PyTorch {torch.__version__}, {workers} runs side by side."


def _write(results: Mapping[str, Results], description: str, out: Path) -> None:
    """Write outcomes, tables and page; print the tables."""
    together: list[Section] = []
    if len(results) > 1:
        together = sections_of_suite(Suite(results))
    alone = {name: sections_of_data(found) for name, found in results.items()}
    parts = [*together]
    for name, sections in alone.items():
        parts += [Section(name), *(replace(section, level=3) for section in sections)] if together else sections
    text = markdown(parts)
    outcomes = [outcome for found in results.values() for outcome in found.as_json()]
    write_text(out / "compare.json", json.dumps(outcomes, indent=1) + "\n")
    write_text(out / "compare.md", f"{description}\n\n{text}")
    write_text(out / "compare.html", page(parts, description))
    for section in together:
        if section.picture is not None:
            svg = base64.b64decode(section.picture.source.partition(",")[2]).decode()
            write_text(out / f"{section.file_name}.svg", svg)
    print(text)
    print(f"page: {out / 'compare.html'}")


def _sizes(data: RetrievalData) -> str:
    train, test = data.train, data.test
    return (
        f"{data.name}: {len(train.labels):,} training samples of {len(train.class_names):,} classes, "
        f"{len(test.labels):,} test samples of {len(test.class_names):,} others"
    )
