"""``robustdml evaluate``: retrieval and verification by a trained network on other data."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from rich.table import Table

from robustdml.arrays import Doubles, Labels
from robustdml.cache import check_writable, write_text
from robustdml.command_line import add_json_argument, add_size_limit, path, print_json, say_left_out
from robustdml.commands.embed import add_embedding_arguments, add_model_arguments, embed_source, open_model, same_source
from robustdml.errors import UsageError, counted, few, say
from robustdml.progress import progress_bar, show_table
from robustdml.reports.html import as_text, figure, page, table
from robustdml.reports.run_plots import LINES, draw_axes
from robustdml.retrieval import METRICS, intervals_over_classes, retrieval_by_query
from robustdml.tables import write_csv
from robustdml.verification import FALSE_ACCEPTS, Verification, verify

PAGE, FIGURES, CLASSES = "evaluation.html", "evaluation.json", "classes.csv"
# Classes in the page, the worst first; all are in the table.
MOST_SHOWN = 50
_CAPTION = (
    "Verification: two samples are taken for one class if their cosine reaches a threshold. TAR is the share of pairs "
    "of one class that reach it, FAR that of pairs of two classes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--data",
        required=True,
        help="what robustdml embed takes, with labels, or glyphs; of data with a test part only that part",
    )
    parser.add_argument("--gallery", help="what --data searches, with the same names of classes (default: itself)")
    parser.add_argument("--out", type=path, metavar="FOLDER", help=f"folder for {PAGE}, {FIGURES} and {CLASSES}")
    add_json_argument(parser)
    add_embedding_arguments(parser)
    add_size_limit(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.out is not None:
        check_writable(arguments.out)
    with progress_bar("evaluate") as on_progress:
        embedder = open_model(arguments, on_progress, arguments.device)
        queries = embed_source(embedder, arguments.data, arguments, on_progress)
        searched = queries
        if arguments.gallery is not None:
            searched = embed_source(embedder, arguments.gallery, arguments, on_progress)
        names = sorted({*queries.samples.class_names, *searched.samples.class_names})
        labels, there = (one.numbered(names) for one in (queries, searched))
        rows, others = (torch.from_numpy(one.embeddings).to(embedder.device) for one in (queries, searched))
        gallery = None if searched is queries else (others, there)
        found = retrieval_by_query(rows, labels, gallery, embedder.device, on_progress)
        judged = ~np.isnan(found[:, 0])
        if not judged.any():
            need = (
                "a class with at least 2 samples" if gallery is None else f"a class of {queries.samples.source} in it"
            )
            raise UsageError(f"{searched.samples.source}: nothing to find; retrieval needs {need}")
        on_progress("comparing pairs", 0, 0)
        pairs = verify(rows, labels, gallery)
    both = [queries.samples, *([searched.samples] if gallery is not None else [])]
    left_out, notes = (
        [one for samples in both for one in samples.left_out],
        [one for samples in both for one in samples.notes],
    )
    say_left_out("evaluate", left_out, notes)
    # Rows of two files of features have the same numbers for names.
    of_files = len(searched.samples.files) > 0
    if gallery is not None and (of_files or same_source(arguments.data, arguments.gallery)):
        there_too = {os.path.realpath(name) for name in searched.names}
        if same := sorted(name for name in queries.names if os.path.realpath(name) in there_too):
            told = f"{counted(len(same), 'sample')} in both, and found as their own copies: {few(same)}"
            say(f"robustdml evaluate: {told}", sys.stderr)
    figures: dict[str, Any] = {
        "data": queries.samples.source,
        "samples": len(labels),
        "classes": len(np.unique(labels)),
        **({} if gallery is None else {"gallery": searched.samples.source, "gallery_samples": len(there)}),
        "nothing_to_find": int((~judged).sum()),
        **dict(zip(METRICS, found[judged].mean(0).tolist(), strict=True)),
        "intervals": dict(zip(METRICS, intervals_over_classes(found, labels), strict=True)),
        "verification": None if pairs is None else pairs.as_dict(),
    }
    if arguments.out is not None:
        write_evaluation(arguments.out, figures, pairs, classes_of(found, labels, names))
    if arguments.json:
        print_json(figures)
        return 0
    searching = f"{counted(len(labels), 'sample')} of {counted(figures['classes'], 'class', 'classes')}"
    among = "" if gallery is None else f", in {searched.samples.source}: {counted(len(there), 'sample')}"
    say(f"{queries.samples.source}: {searching}{among}")
    if figures["nothing_to_find"]:
        print(f"{counted(figures['nothing_to_find'], 'sample')} without another of the class to find: no queries")
    table = Table("", "", "95 % interval over classes", "threshold", show_header=True)
    for row in rows_of(figures):
        table.add_row(*row)
    show_table(table)
    if arguments.out is not None:
        say(f"{arguments.out / PAGE}: the same with curves and the classes")
    return 0


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


def classes_of(found: Doubles, labels: Labels, names: list[str]) -> list[list[Any]]:
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
    shown = [[name, f"{count:,}", *(f"{value:.3f}" for value in rest)] for name, count, *rest in classes]
    curve = "" if pairs is None else figure(_curve(pairs), "Rate of true accepts against that of false ones.", _CAPTION)
    sections = [
        f"<h1>{as_text(figures['data'])}</h1>",
        table(["", "value", "95 % interval over classes", "threshold"], rows_of(figures)),
        curve,
        f"<h2>Classes, the worst first</h2><p>All are in {CLASSES}.</p>",
        table(head, shown[:MOST_SHOWN]),
    ]
    write_text(out / PAGE, page("Evaluation", "\n".join(sections) + "\n"))


def _curve(pairs: Verification) -> str:
    def draw(axes: Axes) -> None:
        axes.plot(pairs.far, pairs.tar, color=LINES[1], lw=2.2)
        axes.set(xscale="log", xlim=(max(FALSE_ACCEPTS[-1], 1 / pairs.impostor), 1), ylim=(0, 1.02))
        axes.set(xlabel="FAR", ylabel="TAR")

    return draw_axes(draw, 3.8)


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.4f} to {ends[1]:.4f}"
