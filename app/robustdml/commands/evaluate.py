"""``robustdml evaluate``: retrieval and verification by a trained network on other data."""

import argparse
import json
import os
import sys
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from robustdml.cache import check_writable
from robustdml.command_line import path
from robustdml.commands.embed import (
    add_embedding_arguments,
    add_model_arguments,
    embed_source,
    open_model,
    same_source,
)
from robustdml.data.images import few
from robustdml.errors import UsageError
from robustdml.progress import progress_bar
from robustdml.reports.evaluation_report import PAGE, classes_of, rows_of, write_evaluation
from robustdml.reports.left_out import say_left_out
from robustdml.retrieval import METRICS, intervals_over_classes, retrieval_by_query
from robustdml.verification import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--data",
        required=True,
        help="whatever robustdml embed takes and has labels, such as a folder of class folders; also glyphs, "
        "glyphs-validation and glyphs-large; of data with a test part of its own that part, otherwise all of it",
    )
    parser.add_argument(
        "--gallery", help="what --data searches, given as --data is, with the same names of classes (default: itself)"
    )
    parser.add_argument(
        "--out", type=path, metavar="FOLDER", help=f"folder for {PAGE}, figures as JSON and classes.csv"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON rather than as a table")
    add_embedding_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.out is not None:
        check_writable(arguments.out)
    with progress_bar("evaluate") as report:
        embedder = open_model(arguments, report, arguments.device)
        queries = embed_source(embedder, arguments.data, arguments, report)
        searched = queries
        if arguments.gallery is not None:
            searched = embed_source(embedder, arguments.gallery, arguments, report)
        names = sorted({*queries.samples.class_names, *searched.samples.class_names})
        labels, there = (one.numbered(names) for one in (queries, searched))
        rows, others = (torch.from_numpy(one.embeddings).to(embedder.device) for one in (queries, searched))
        gallery = None if searched is queries else (others, there)
        found = retrieval_by_query(rows, labels, gallery, embedder.device, report)
        judged = ~np.isnan(found[:, 0])
        if not judged.any():
            need = "a class with at least 2 samples" if gallery is None else f"a class of {queries.samples.name} in it"
            raise UsageError(f"{searched.samples.name}: nothing to find; retrieval needs {need}")
        report("comparing pairs", 0, 0)
        pairs = verify(rows, labels, gallery)
    say_left_out("evaluate", [*queries.left_out, *(searched.left_out if gallery is not None else ())])
    # Rows of two files of features have the same numbers for names.
    of_files = isinstance(searched.samples.inputs, list)
    if gallery is not None and (of_files or same_source(arguments.data, arguments.gallery)):
        there_too = {os.path.realpath(name) for name in searched.names}
        if same := sorted(name for name in queries.names if os.path.realpath(name) in there_too):
            told = f"{len(same)} samples are in both, and find themselves: {few(same)}"
            print(f"robustdml evaluate: {told}", file=sys.stderr)
    values = dict(zip(METRICS, found[judged].mean(0).tolist(), strict=True))
    figures: dict[str, Any] = {
        "data": queries.samples.name,
        "samples": len(labels),
        "classes": len(np.unique(labels)),
        **({} if gallery is None else {"gallery": searched.samples.name, "gallery_samples": len(there)}),
        "nothing_to_find": int((~judged).sum()),
        **values,
        "intervals": dict(zip(METRICS, intervals_over_classes(found, labels), strict=True)),
        "verification": None if pairs is None else pairs.as_dict(),
    }
    if arguments.out is not None:
        write_evaluation(arguments.out, figures, pairs, classes_of(found, labels, names))
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return 0
    print(f"{queries.samples.name}: {len(labels):,} samples of {figures['classes']:,} classes", end="")
    print("" if gallery is None else f", in {searched.samples.name}: {len(there):,} samples")
    if figures["nothing_to_find"]:
        print(f"{figures['nothing_to_find']:,} have no other sample of their class to find, and are no queries")
    table = Table("", "", "95 % interval over classes", "threshold", show_header=True)
    for row in rows_of(figures):
        table.add_row(*row)
    Console().print(table)
    if arguments.out is not None:
        print(f"{arguments.out / PAGE}: the same with curves and the classes")
    return 0
