"""Figures of ``robustdml evaluate`` as a page, as JSON and as a table of the classes."""

import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from robustdml.cache import write_text
from robustdml.errors import in_one_line
from robustdml.plain_files import write_csv
from robustdml.reports.html import figure, page, table
from robustdml.reports.run_plots import LINES, draw_axes
from robustdml.retrieval import METRICS
from robustdml.verification import FALSE_ACCEPTS, Verification

PAGE, FIGURES, CLASSES = "evaluation.html", "evaluation.json", "classes.csv"
# Classes in the page, the worst first; all are in the table.
MOST_SHOWN = 50


def rows_of(figures: dict[str, Any]) -> list[list[str]]:
    """The figures as a table: name, value, interval, threshold."""
    rows = [[title, f"{figures[key]:.4f}", _interval(figures["intervals"][key]), ""] for key, title in METRICS.items()]
    pairs = figures["verification"]
    if pairs is None:
        return rows
    for one in pairs["at"]:
        interval = _interval((one["low"], one["high"]))
        rows.append([f"TAR at FAR {one['far']:g}", f"{one['tar']:.4f}", interval, f"{one['threshold']:.4f}"])
    best = pairs["best"]
    name = f"best threshold: TAR (FAR {best['far']:.4f})"
    return [*rows, [name, f"{best['tar']:.4f}", "", f"{best['threshold']:.4f}"]]


def classes_of(found: NDArray[np.float64], labels: NDArray[np.int64], names: list[str]) -> list[list[Any]]:
    """Name, samples and means of `METRICS` of each class that has queries, the worst by MAP@R first."""
    judged = ~np.isnan(found[:, 0])
    counts = np.bincount(labels[judged], minlength=len(names))
    means = [np.bincount(labels[judged], column, len(names)) / np.maximum(counts, 1) for column in found[judged].T]
    order = [number for number in np.argsort(means[-1], kind="stable") if counts[number]]
    return [[names[number], int(counts[number]), *(float(mean[number]) for mean in means)] for number in order]


def write_evaluation(out: Path, figures: dict[str, Any], pairs: Verification | None, classes: list[list[Any]]) -> None:
    """Write all three files."""
    write_text(out / FIGURES, json.dumps(figures, indent=2) + "\n")
    write_csv(out / CLASSES, [["class", "samples", *METRICS], *classes])
    head = ["class", "samples", *METRICS.values()]
    shown = [[in_one_line(name), f"{count:,}", *(f"{value:.3f}" for value in rest)] for name, count, *rest in classes]
    curve = "" if pairs is None else figure(_curve(pairs), "Rate of true accepts against that of false ones.", _CAPTION)
    sections = [
        f"<h1>{escape(in_one_line(figures['data']))}</h1>",
        table(["", "value", "95 % interval over classes", "threshold"], rows_of(figures)),
        curve,
        f"<h2>Classes, the worst first</h2><p>All are in {CLASSES}.</p>",
        table(head, shown[:MOST_SHOWN]),
    ]
    write_text(out / PAGE, page("Evaluation", "\n".join(sections) + "\n"))


_CAPTION = (
    "Verification: two samples are taken for one class if their cosine reaches a threshold. TAR is the share of pairs "
    "of one class that reach it, FAR that of pairs of two classes."
)


def _curve(pairs: Verification) -> str:
    def draw(axes: Axes) -> None:
        axes.plot(pairs.far, pairs.tar, color=LINES[1], lw=2.2)
        axes.set(xscale="log", xlim=(max(FALSE_ACCEPTS[-1], 1 / pairs.impostor), 1), ylim=(0, 1.02))
        axes.set(xlabel="FAR", ylabel="TAR")

    return draw_axes(draw, 3.8)


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.4f} to {ends[1]:.4f}"
