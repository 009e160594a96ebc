"""What the commands share that take a trained network."""

import argparse

from robustdml.command_line import path
from robustdml.networks.preparation import resolve_device
from robustdml.trained.embedder import BATCH_SIZE, TrainedEmbedder, load_embedder


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, and how it is opened."""
    parser.add_argument("model", type=path, metavar="MODEL", help="folder of a run, or model file")
    parser.add_argument(
        "--backbone",
        default="",
        metavar="PACKAGE.MODULE:FACTORY",
        help="the backbone that it was trained with, where that is code of your own: it is imported only if named here",
    )


def add_embedding_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how samples are embedded."""
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="samples at a time")
    parser.add_argument(
        "--skip-broken", action="store_true", help="leave images out that cannot be read, and name them at the end"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")


def open_model(arguments: argparse.Namespace, device: str = "cpu") -> TrainedEmbedder:
    """Load the network that the command line names."""
    return load_embedder(arguments.model, backbone=arguments.backbone, device=resolve_device(device))
