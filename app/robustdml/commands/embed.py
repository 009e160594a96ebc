"""``robustdml embed``: embeddings of images, by a trained network."""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml.cache import write_whole
from robustdml.command_line import path
from robustdml.commands.model_arguments import add_embedding_arguments, add_model_arguments, open_model
from robustdml.data.images import few
from robustdml.errors import UsageError
from robustdml.progress import progress_bar
from robustdml.trained.embedding import Embedded, Samples, embed_samples, find_samples


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model_arguments(parser)
    parser.add_argument(
        "images",
        metavar="IMAGES",
        help="a folder of class folders (with train and test in it: both parts), a folder of images, an image, a list "
        "of images (.csv or .parquet with the columns path and label, or a text file with a path a line and perhaps a "
        "label after a tab), or an .npz file of features where the model takes "
        "features",
    )
    parser.add_argument(
        "-o", "--out", type=path, required=True, metavar="FILE", help="the .npz file to write; --data FILE reads it"
    )
    add_embedding_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Embed, and write the file."""
    out: Path = arguments.out
    _check_output(out)
    arrays: dict[str, NDArray[np.generic]] = {}
    broken: list[str] = []
    with progress_bar("embed") as report:
        report("reading the model", 0, 0)
        embedder = open_model(arguments, arguments.device)
        parts = find_samples(arguments.images, embedder.card)
        classes = list(dict.fromkeys(name for samples in parts.values() for name in samples.class_names))
        for part, samples in parts.items():
            embedded = embed_samples(
                embedder,
                samples,
                batch_size=arguments.batch_size,
                skip_broken=arguments.skip_broken,
                on_progress=report,
            )
            arrays |= {f"{part}{name}": array for name, array in _arrays(samples, embedded, classes).items()}
            broken += embedded.broken
    if classes:
        arrays["class_names"] = np.array(classes)
    write_whole(out, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    if broken:
        print(f"robustdml embed: left out {len(broken)} that cannot be read: {few(broken)}", file=sys.stderr)
    print(f"{out}: {_sizes(arrays)}")
    return 0


def _check_output(out: Path) -> None:
    """Find out before the work whether its result can be written."""
    if out.suffix != ".npz":
        raise UsageError(f"--out {out}: expected a name that ends in .npz")
    if out.is_dir():
        raise UsageError(f"--out {out}: is a folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"--out {out}: the folder {out.parent} cannot be written to")


def _arrays(samples: Samples, embedded: Embedded, classes: list[str]) -> dict[str, NDArray[np.generic]]:
    """Embeddings, and what is known of each; labels number the classes of all parts together."""
    arrays: dict[str, NDArray[np.generic]] = {"features": embedded.embeddings}
    if samples.labels is not None:
        numbers = np.array([classes.index(name) for name in samples.class_names], dtype=np.int64)
        arrays["labels"] = numbers[samples.labels[embedded.rows]]
    if isinstance(samples.inputs, list):
        arrays["paths"] = np.array([str(samples.inputs[row]) for row in embedded.rows])
    return arrays


def _sizes(arrays: dict[str, NDArray[np.generic]]) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, array.shape))}" for name, array in arrays.items())
