"""``robustdml evaluate``: retrieval metrics of a trained network on other data."""

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from robustdml.commands.embed import add_embedding_arguments, add_model_arguments, open_model
from robustdml.data.features import TEST, TRAIN
from robustdml.data.images import few
from robustdml.errors import UsageError
from robustdml.evaluation import METRICS, retrieval_metrics
from robustdml.progress import progress_bar
from robustdml.trained.embedding import embed_samples, find_samples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--data",
        required=True,
        help="whatever robustdml embed takes and has labels, such as a folder of class folders; also glyphs, "
        "glyphs-validation and glyphs-large; of data with a test part of its own that part, otherwise all of it",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON rather than as a table")
    add_embedding_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with progress_bar("evaluate") as report:
        report("reading the model", 0, 0)
        embedder = open_model(arguments, arguments.device)
        parts = find_samples(arguments.data, embedder.card)
        samples = parts.get(TEST, parts[TRAIN])
        if samples.labels is None:
            raise UsageError(f"{samples.name}: has no labels, and without them there is nothing to score")
        embeddings, rows, broken = embed_samples(
            embedder, samples, batch_size=arguments.batch_size, skip_broken=arguments.skip_broken, on_progress=report
        )
        labels = samples.labels[rows]
        report("searching", 0, 0)
        metrics = retrieval_metrics(embeddings, labels, embedder.device)
    if broken:
        print(f"robustdml evaluate: left out {len(broken)} that cannot be read: {few(broken)}", file=sys.stderr)
    part = f"{samples.name}, test part" if TEST in parts else samples.name
    sizes = {"data": part, "samples": len(labels), "classes": len(set(labels.tolist()))}
    if arguments.json:
        print(json.dumps({**sizes, **metrics}, indent=2))
        return 0
    print(f"{part}: {sizes['samples']:,} samples of {sizes['classes']:,} classes")
    table = Table(show_header=False)
    for key, title in METRICS.items():
        table.add_row(title, f"{metrics[key]:.4f}")
    Console().print(table)
    return 0
