"""Plots of docs/figures.md, drawn from the tables of bench/results while the site is built."""

import base64
from collections.abc import Callable
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes

from robustdml.reports.drawing import GREY, RIGHT, WRONG, draw_axes
from website.repository import ROOT
from website.tables import Row, interval, mean, megabytes, seconds, sections

RESULTS = ROOT / "bench" / "results"
LANES = "cpu-epyc-2-threads-lanes.md"
# What a plot calls a row, and where it stands: shape, ours and pytorch-metric-learning's.
STEPS = {
    "Proxy-Anchor, 10⁵ classes": ("proxy-anchor, B=256 C=1e5 D=128", "robustdml/proxy-anchor", "pml/proxy-anchor"),
    "Proxy-NCA, 10⁵ classes": ("class LSE, B=256 C=1e5 D=128", "robustdml/class-lse", "pml/proxy-nca"),
    "multi-similarity, mined, half wrong": ("pairs, ms, B=1024 D=512, 50 % wrong labels", "robustdml/ms", "pml/ms"),
    "contrastive": ("pairs, contrastive, B=1024 D=512", "robustdml/contrastive", "pml/contrastive"),
    "contrastive, a memory of 10⁵": ("pairs, memory, B=256 D=128 m=1e5", "robustdml/memory", "pml/memory"),
    "Proxy-Anchor, 200 classes": ("proxy-anchor, B=128 C=2e2 D=64", "robustdml/proxy-anchor", "pml/proxy-anchor"),
}
MEMORY = {
    "Proxy-Anchor, 10⁵ classes": ("B=256 C=1e5 D=128", "robustdml/proxy-anchor", "pml/proxy-anchor"),
    "Proxy-NCA, 10⁵ classes": ("B=256 C=1e5 D=128", "robustdml/class-lse", "pml/proxy-nca"),
    "multi-similarity, mined": ("memory of pairs, B=1024 D=512", "robustdml/ms", "pml/ms"),
    "contrastive, a memory of 10⁵": ("memory of pairs, B=256 D=128 m=1e5", "robustdml/memory", "pml/memory"),
}
CROWD = {"at rest": "at rest", "beside a busy process": "beside it"}
SYMMETRIC = {"none": 0, "symmetric:0.2": 20, "symmetric:0.5": 50, "symmetric:0.7": 70}
BASELINE = "Untouched features"


def drawings() -> dict[str, bytes]:
    """SVG files by address."""
    plots: dict[str, tuple[Callable[[Axes], None], float]] = {
        "steps": (partial(_pairs, values=step_times(), label="seconds of a step, loss and gradients"), 4.2),
        "memory": (partial(_pairs, values=memory(), label="megabytes beyond inputs and gradients"), 2.6),
        "crowd": (partial(_pairs, values=crowd(), label="seconds of a step"), 2.8),
        "noise": (_noise, 4.6),
        "ranks": (_ranks, 3.6),
    }
    return {
        f"plots/{name}.svg": base64.b64decode(draw_axes(draw, height).partition(",")[2])
        for name, (draw, height) in plots.items()
    }


def step_times() -> dict[str, tuple[float, float]]:
    """Seconds of a step: ours, and pytorch-metric-learning's."""
    times = {(row["what, shape"], row["who"]): row["median"] for row in _rows(LANES, "median")}
    return {
        title: (seconds(times[what, ours]), seconds(times[what, peer])) for title, (what, ours, peer) in STEPS.items()
    }


def memory() -> dict[str, tuple[float, float]]:
    """Megabytes beyond inputs and gradients, likewise."""
    column = "beyond inputs and gradients"
    files = ("cpu-epyc-2-threads.md", "cpu-epyc-2-threads-classes-pairs-filters.md")
    taken = {(row["shape"], row["who"]): row[column] for file in files for row in _rows(file, column)}
    return {
        title: (megabytes(taken[shape, ours]), megabytes(taken[shape, peer]))
        for title, (shape, ours, peer) in MEMORY.items()
    }


def crowd() -> dict[str, tuple[float, float]]:
    """Seconds of a step of Proxy-Anchor at rest and beside a busy process, likewise."""
    times = {row["B=256 C=1e5 D=128"]: row for row in _rows(LANES, "beside it")}
    ours, peer = times["robustdml/proxy-anchor"], times["pml/proxy-anchor"]
    return {title: (seconds(ours[column]), seconds(peer[column])) for title, column in CROWD.items()}


def precision_by_noise() -> dict[str, list[float]]:
    """Mean MAP@R over the data sets of the suite by method, at the shares of `SYMMETRIC`."""
    tables = [
        rows for title, rows in sections(RESULTS / "suite-all.md").items() if title.endswith("MAP@R on unseen classes")
    ]
    return {
        row[""]: [fmean(mean(table[i][noise]) for table in tables) for noise in SYMMETRIC]
        for i, row in enumerate(tables[0])
    }


def ranks() -> list[tuple[str, float, float, float]]:
    """Method, average rank by MAP@R, and the ends of its interval."""
    rows = sections(RESULTS / "suite-all.md")["The suite, fifteen data sets, eight noises / Average ranks by MAP@R"]
    return [(row[""], float(row["average rank"]), *interval(row["95 % interval"])) for row in rows]


def _rows(file: str, column: str) -> list[Row]:
    """Rows of the tables of a file that have a column."""
    return [row for rows in sections(RESULTS / file).values() for row in rows if column in row]


def _pairs(axes: Axes, values: dict[str, tuple[float, float]], label: str) -> None:
    places = range(len(values))
    for shift, colour, name, side in ((-0.2, RIGHT, "robustdml_ops", 0), (0.2, GREY, "pytorch-metric-learning", 1)):
        lengths = [pair[side] for pair in values.values()]
        bars = axes.barh([place + shift for place in places], lengths, 0.36, color=colour, label=name)
        axes.bar_label(
            bars, [f"{length:,.0f}" if length >= 100 else f"{length:.3g}" for length in lengths], padding=3, fontsize=9
        )
    axes.set(xscale="log", xlabel=label, yticks=list(places), yticklabels=list(values))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


def _noise(axes: Axes) -> None:
    for method, values in precision_by_noise().items():
        width, style = (3, "-") if method == "Robust" else (1.4, "--" if method == BASELINE else "-")
        colour = {"Robust": RIGHT, BASELINE: GREY, "Proxy-Anchor": WRONG}.get(method)
        axes.plot(
            list(SYMMETRIC.values()),
            values,
            style,
            color=colour,
            linewidth=width,
            marker="o",
            markersize=4,
            label=method,
        )
    axes.set(
        xlabel="wrong labels, percent, at random",
        ylabel="MAP@R, mean of fifteen data sets",
        xticks=list(SYMMETRIC.values()),
    )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _ranks(axes: Axes) -> None:
    found = ranks()
    for place, (method, rank, low, high) in enumerate(found):
        axes.plot([low, high], [place, place], color=RIGHT if method == "Robust" else GREY, linewidth=3)
        axes.plot(rank, place, "o", color=RIGHT if method == "Robust" else GREY)
    axes.set(
        xlabel="average rank by MAP@R, with its interval of 95 %",
        yticks=range(len(found)),
        yticklabels=[row[0] for row in found],
    )
    axes.invert_yaxis()
