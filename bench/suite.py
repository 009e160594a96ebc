"""Run the benchmarks, and lay out their results as tables and a plot."""

import os
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
OURS = "robustdml/"
_NEEDED = {"pytest": "pytest", "pytest_benchmark": "pytest-benchmark"}


class BenchError(Exception):
    """A benchmark that cannot run, with the way out."""


def measure(path: Path, only: str) -> None:
    """Write pytest-benchmark's JSON of the benchmarks that pytest's ``-k only`` selects (all for "") to ``path``."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise BenchError(f"needs {', '.join(missing)}: install with `pip install 'robustdml_ops[bench]'`")
    files = sorted(str(file) for file in FOLDER.glob("bench_*.py"))
    if not files:
        raise BenchError(f"no benchmarks in {FOLDER}: in a checkout it is a link, for which git needs core.symlinks")
    command = [sys.executable, "-m", "pytest", *files, "-q", "-p", "no:xdist", f"--benchmark-json={path.resolve()}"]
    command += ["-W", "default", "--benchmark-columns=median,iqr,rounds", *(["-k", only] if only else [])]
    # Ignore the settings and the conftest of a project around the installed package, and write nothing beside it.
    command += ["-c", os.devnull, f"--rootdir={FOLDER}", f"--confcutdir={FOLDER}", "-p", "no:cacheprovider"]
    if subprocess.run(command, cwd=FOLDER.parents[1], check=False).returncode:
        raise BenchError("a benchmark failed its check for correctness, or none was selected; see above")


def report(content: dict[str, Any]) -> str:
    """Markdown of pytest-benchmark's JSON: the machine, a table of times, and one of memory where it was measured."""
    sections = [machine(content), markdown(TIMING_HEADER, [timing_cells(row) for row in timing_rows(content)])]
    memory = [benchmark for benchmark in content["benchmarks"] if "beyond_mb" in benchmark["extra_info"]]
    if memory:
        sections.append(markdown(MEMORY_HEADER, [memory_cells(benchmark) for benchmark in memory]))
    return "\n\n".join(sections) + "\n"


def machine(content: dict[str, Any]) -> str:
    """A line on the hardware and the software of a result."""
    info, commit = content["machine_info"], content["commit_info"]
    device = info.get("gpu") or info["cpu"].get("brand_raw", info["machine"])
    software = f"torch {info.get('torch')}, Python {info['python_version']}, robustdml_ops {info.get('robustdml_ops')}"
    # A wheel has no commit.
    state = "" if commit["id"] == "unversioned" else f", commit {commit['id'][:10]}"
    return f"{device}, {info.get('threads')} threads, {software}{state}{' with changes' if commit.get('dirty') else ''}"


def timing_rows(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Each timed contender with its medians and the median of ours in the same group."""
    timed = [benchmark for benchmark in content["benchmarks"] if "floor_s" in benchmark["extra_info"]]
    ours: dict[str, float] = defaultdict(lambda: float("nan"))
    for benchmark in timed:
        if benchmark["extra_info"]["contender"].startswith(OURS):
            # The first of ours in a group computes the same as the peers.
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
MEMORY_HEADER = ("shape", "who", "beyond what is held", "held: inputs, gradients, moments", "whole process")


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
