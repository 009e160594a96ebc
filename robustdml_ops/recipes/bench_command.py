"""``robustdml bench``: run the benchmarks of the checkout, then print what they found as a table and a plot."""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from robustdml_ops.recipes.errors import UsageError

CHECKOUT = Path(__file__).parents[2]
OURS = "robustdml/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench"), help="folder for bench.json, bench.md and bench.png"
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="run what pytest's -k selects, as 'proxy and 1e5'")
    parser.add_argument("--json", type=Path, help="show an earlier result instead of measuring")


def run(arguments: argparse.Namespace) -> int:
    """Measure, or read what was measured, and show it."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.json or measure(arguments.out / "bench.json", arguments.only)
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} holds no benchmark result: {error}") from error
    rows = timing_rows(report["benchmarks"])
    sections = [machine(report), markdown(TIMING_HEADER, [timing_cells(row) for row in rows])]
    memory = [benchmark for benchmark in report["benchmarks"] if "beyond_mb" in benchmark["extra_info"]]
    if memory:
        sections.append(markdown(MEMORY_HEADER, [memory_cells(benchmark) for benchmark in memory]))
    text = "\n\n".join(sections) + "\n"
    (arguments.out / "bench.md").write_text(text)
    print(text)
    losses = [row for row in rows if row["flops"]]
    if losses:
        plot(losses, arguments.out / "bench.png")
        print(f"plot: {arguments.out / 'bench.png'}")
    return 0


def measure(path: Path, only: str) -> Path:
    """Run pytest-benchmark over ``bench/`` and leave its JSON in ``path``."""
    if not (CHECKOUT / "bench").is_dir():
        raise UsageError(
            "the benchmarks are not part of the wheel: run this in a checkout installed with `pip install -e .`"
        )
    files = sorted(str(file) for file in (CHECKOUT / "bench").glob("bench_*.py"))
    command = [sys.executable, "-m", "pytest", *files, "-q", "-p", "no:xdist", f"--benchmark-json={path.resolve()}"]
    command += ["-W", "default", "--benchmark-columns=median,iqr,rounds", *(["-k", only] if only else [])]
    if subprocess.run(command, cwd=CHECKOUT, check=False).returncode:
        raise UsageError("a benchmark failed its check for correctness; see above")
    return path


def machine(report: dict[str, Any]) -> str:
    """Name what the figures were measured on."""
    info = report["machine_info"]
    device = info.get("gpu") or info["cpu"].get("brand_raw", info["machine"])
    commit = report["commit_info"]
    state = commit["id"][:10] + (" with changes" if commit.get("dirty") else "")
    software = f"torch {info.get('torch')}, Python {info['python_version']}"
    return f"{device}, {info.get('threads')} threads, {software}, commit {state}"


def timing_rows(benchmarks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each timed contender with its medians and what ours takes in the same group."""
    timed = [benchmark for benchmark in benchmarks if "floor_s" in benchmark["extra_info"]]
    ours: dict[str, float] = defaultdict(lambda: float("nan"))
    for benchmark in timed:
        if benchmark["extra_info"]["contender"].startswith(OURS):
            # The first of ours in a group is what the peers of that group compute.
            ours.setdefault(benchmark["group"], benchmark["stats"]["median"])
    return [
        {
            "group": benchmark["group"],
            "contender": benchmark["extra_info"]["contender"],
            "median": benchmark["stats"]["median"],
            "floor": benchmark["extra_info"]["floor_s"],
            "flops": benchmark["extra_info"].get("flops"),
            "ours": ours[benchmark["group"]],
        }
        for benchmark in timed
    ]


TIMING_HEADER = ("what, shape", "who", "median", "floor", "÷ floor", "÷ ours", "floor's rate")
MEMORY_HEADER = ("shape", "who", "beyond inputs and gradients", "inputs and gradients", "whole process")


def timing_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table of times."""
    rate = f"{row['flops'] / row['floor'] / 1e9:.0f} GFLOP/s" if row["flops"] else ""
    return (
        row["group"],
        row["contender"],
        seconds(row["median"]),
        seconds(row["floor"]),
        f"{row['median'] / row['floor']:.2f}",
        f"{row['median'] / row['ours']:.1f}",
        rate,
    )


def memory_cells(benchmark: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table of memory."""
    info = benchmark["extra_info"]
    sizes = (info[key] for key in ("beyond_mb", "inputs_and_gradients_mb", "process_mb"))
    return (benchmark["group"].removeprefix("memory, "), info["contender"], *(f"{size:,.0f} MB" for size in sizes))


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Lay out a table that reads well in a terminal, too."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def seconds(value: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw a bar for each loss, as a multiple of its matrix products."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.42 * len(rows) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    ratios = [row["median"] / row["floor"] for row in rows]
    colours = ["tab:blue" if row["contender"].startswith(OURS) else "tab:gray" for row in rows]
    places = range(len(rows))
    axes.barh(places, ratios, color=colours)
    axes.set_yticks(places, [f"{row['group']}\n{row['contender']}" for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(0.8, max(ratios) * 2.5)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50) if tick < max(ratios) * 2.5]
    axes.set_xticks(ticks, [f"{tick}×" for tick in ticks])
    axes.minorticks_off()
    axes.axvline(1, color="black", linewidth=1)
    for place, row, ratio in zip(places, rows, ratios, strict=True):
        axes.text(ratio * 1.03, place, f"{ratio:.2f}×  ({seconds(row['median'])})", va="center", fontsize=7)
    axes.set_xlabel("time of a step as a multiple of its matrix products alone (blue: robustdml_ops)", fontsize=8)
    figure.savefig(path, dpi=130)
