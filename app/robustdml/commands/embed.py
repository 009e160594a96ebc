"""``robustdml embed``: embeddings of images, by a trained network; and what all commands share that take one."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from robustdml.arrays import Array
from robustdml.cache import check_writable
from robustdml.command_line import add_json_argument, add_size_limit, path, print_json, say_left_out
from robustdml.commands.reading import add_reading_arguments, columns_of
from robustdml.data.features import TEST, TRAIN
from robustdml.errors import UsageError, expanded, say
from robustdml.networks.preparation import resolve_device
from robustdml.plain_files import write_npz
from robustdml.progress import OnProgress, progress_bar
from robustdml.trained.embedder import BATCH_SIZE, TrainedEmbedder, load_embedder
from robustdml.trained.embedding import EXPECTED, Embedded, embed_samples, find_samples


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=path, metavar="MODEL", help="folder of a run, or model file")
    parser.add_argument(
        "--backbone",
        default="",
        metavar="PACKAGE.MODULE:FACTORY",
        help="the model's, where that is code of your own: it is imported only if named here",
    )


def add_embedding_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="samples at a time")
    parser.add_argument("--skip-broken", action="store_true", help="leave out images that cannot be read")
    add_reading_arguments(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")


def add_output_argument(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("-o", "--out", type=path, required=True, metavar="FILE", help=text)


def open_model(arguments: argparse.Namespace, on_progress: OnProgress, device: str = "cpu") -> TrainedEmbedder:
    on_progress("reading the model", 0, 0)
    return load_embedder(arguments.model, backbone=arguments.backbone, device=resolve_device(device))


def same_source(one: str, other: str) -> bool:
    """Whether two arguments name the same file, folder or data set."""
    return os.path.realpath(expanded(one)) == os.path.realpath(expanded(other))


def embed_source(
    embedder: TrainedEmbedder, source: str, arguments: argparse.Namespace, on_progress: OnProgress
) -> Embedded:
    """Embed the test part of data that has one, otherwise all of it."""
    parts = find_samples(source, embedder.card, columns_of(arguments))
    samples = parts.get(TEST, parts[TRAIN])
    if TEST in parts:
        samples = replace(samples, source=f"{samples.source}, test part")
    return embed_samples(embedder, samples, arguments.batch_size, arguments.skip_broken, on_progress)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("images", metavar="IMAGES", help=EXPECTED)
    add_output_argument(parser, "the .npz file to write; robustdml train --data FILE reads it")
    add_json_argument(parser)
    add_embedding_arguments(parser)
    add_size_limit(parser)


def run(arguments: argparse.Namespace) -> int:
    out: Path = arguments.out
    # Whether the result can be written is found out before the work.
    if out.suffix.lower() != ".npz":
        raise UsageError(f"--out {out}: expected a name that ends in .npz")
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder")
    check_writable(out.parent)
    arrays: dict[str, Array] = {}
    left_out: list[str] = []
    notes: list[str] = []
    with progress_bar("embed") as on_progress:
        embedder = open_model(arguments, on_progress, arguments.device)
        parts = find_samples(arguments.images, embedder.card, columns_of(arguments))
        classes = list(dict.fromkeys(name for samples in parts.values() for name in samples.class_names))
        for part, samples in parts.items():
            found = embed_samples(embedder, samples, arguments.batch_size, arguments.skip_broken, on_progress)
            arrays[f"{part}features"] = found.embeddings
            if samples.class_names:
                arrays[f"{part}labels"] = found.numbered(classes)
            if samples.files:
                arrays[f"{part}paths"] = np.array(found.names)
            left_out += found.samples.left_out
            notes += found.samples.notes
    if classes:
        arrays["class_names"] = np.array(classes)
    write_npz(out, **arrays)
    say_left_out("embed", left_out, notes)
    if arguments.json:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        print_json({"embeddings": str(out), "arrays": shapes, "left_out": left_out, "notes": notes})
        return 0
    if "labels" not in arrays:
        say(f"robustdml embed: {arguments.images} has no labels, such as class folders give: none are in {out}")
    sizes = (f"{name} {'×'.join(map(str, array.shape))}" for name, array in arrays.items())
    say(f"{out}: {', '.join(sizes)}")
    return 0
