"""``robustdml embed``: embeddings of images, by a trained network; and what all commands share that take one."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml.command_line import path
from robustdml.data.features import TEST, TRAIN
from robustdml.errors import UsageError
from robustdml.networks.preparation import resolve_device
from robustdml.plain_files import write_npz
from robustdml.progress import OnProgress, progress_bar
from robustdml.reports.left_out import say_left_out
from robustdml.trained.embedder import BATCH_SIZE, TrainedEmbedder, load_embedder
from robustdml.trained.embedding import Samples, embed_samples, find_samples


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=path, metavar="MODEL", help="folder of a run, or model file")
    parser.add_argument(
        "--backbone",
        default="",
        metavar="PACKAGE.MODULE:FACTORY",
        help="the backbone that it was trained with, where that is code of your own: it is imported only if named here",
    )


def add_embedding_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="samples at a time")
    parser.add_argument(
        "--skip-broken", action="store_true", help="leave images out that cannot be read, and name them at the end"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")


def open_model(arguments: argparse.Namespace, device: str = "cpu") -> TrainedEmbedder:
    return load_embedder(arguments.model, backbone=arguments.backbone, device=resolve_device(device))


@dataclass(frozen=True)
class Embedded:
    """Samples with their embeddings."""

    name: str
    samples: Samples
    embeddings: NDArray[np.float32]  # (N, D), rows of length 1
    rows: NDArray[np.int64]  # Which of the samples they are of, (N,)
    left_out: list[str]  # With the reason

    def numbered(self, names: list[str]) -> NDArray[np.int64]:
        """Labels as places among all names of classes, (N,)."""
        if self.samples.labels is None:
            raise UsageError(
                f"{self.name}: has no labels, and without them there is nothing to score; give a folder of class "
                "folders, or a list with the columns path and label"
            )
        numbers = {name: number for number, name in enumerate(names)}
        own = np.array([numbers[name] for name in self.samples.class_names], dtype=np.int64)
        return own[self.samples.labels[self.rows]]

    def class_of(self, place: int) -> str | None:
        """Class of a sample, if it is known."""
        labels = self.samples.labels
        return None if labels is None else self.samples.class_names[labels[self.rows[place]]]

    @property
    def names(self) -> list[str]:
        """Files, or places among the samples, (N,)."""
        inputs = self.samples.inputs
        return [str(inputs[row]) if isinstance(inputs, list) else str(row) for row in self.rows]


def embed_source(
    embedder: TrainedEmbedder, source: str, arguments: argparse.Namespace, on_progress: OnProgress
) -> Embedded:
    """Embed the test part of data that has one, otherwise all of it."""
    parts = find_samples(source, embedder.card)
    samples = parts.get(TEST, parts[TRAIN])
    name = f"{samples.name}, test part" if TEST in parts else samples.name
    size, skip = arguments.batch_size, arguments.skip_broken
    found = embed_samples(embedder, samples, batch_size=size, skip_broken=skip, on_progress=on_progress)
    return Embedded(name, samples, *found)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "images",
        metavar="IMAGES",
        help="a folder of class folders (with train and test in it: both parts), a folder of images, an image, a list "
        "of images (.csv or .parquet with the columns path and label, or a text file with a path a line), or an .npz "
        "file of features where the model takes features",
    )
    parser.add_argument(
        "-o", "--out", type=path, required=True, metavar="FILE", help="the .npz file to write; --data FILE reads it"
    )
    add_embedding_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    out: Path = arguments.out
    # Whether the result can be written is found out before the work.
    if out.suffix != ".npz":
        raise UsageError(f"--out {out}: expected a name that ends in .npz")
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"--out {out}: the folder {out.parent} cannot be written to")
    arrays: dict[str, NDArray[np.generic]] = {}
    broken: list[str] = []
    with progress_bar("embed") as report:
        report("reading the model", 0, 0)
        embedder = open_model(arguments, arguments.device)
        parts = find_samples(arguments.images, embedder.card)
        classes = list(dict.fromkeys(name for samples in parts.values() for name in samples.class_names))
        size, skip = arguments.batch_size, arguments.skip_broken
        for part, samples in parts.items():
            embeddings, rows, left_out = embed_samples(
                embedder, samples, batch_size=size, skip_broken=skip, on_progress=report
            )
            arrays |= {f"{part}{name}": array for name, array in _arrays(samples, embeddings, rows, classes).items()}
            broken += left_out
    if classes:
        arrays["class_names"] = np.array(classes)
    write_npz(out, **arrays)
    say_left_out("embed", broken)
    if "labels" not in arrays:
        print(f"robustdml embed: {arguments.images} has no labels, such as class folders give: none are in {out}")
    sizes = (f"{name} {'×'.join(map(str, array.shape))}" for name, array in arrays.items())
    print(f"{out}: {', '.join(sizes)}")
    return 0


def _arrays(
    samples: Samples, embeddings: NDArray[np.float32], rows: NDArray[np.int64], classes: list[str]
) -> dict[str, NDArray[np.generic]]:
    """Embeddings, and what is known of each; labels number the classes of all parts together."""
    arrays: dict[str, NDArray[np.generic]] = {"features": embeddings}
    if samples.labels is not None:
        numbers = np.array([classes.index(name) for name in samples.class_names], dtype=np.int64)
        arrays["labels"] = numbers[samples.labels[rows]]
    if isinstance(samples.inputs, list):
        arrays["paths"] = np.array([str(samples.inputs[row]) for row in rows])
    return arrays
