"""``robustdml train``: one training run."""

import argparse
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import load_data
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.methods import METHODS
from robustdml_ops.recipes.progress import progress_bar
from robustdml_ops.recipes.train import TrainingResult, train

DEFAULTS = TrainingConfig()

METRICS = {
    "precision_at_1": "Recall@1",
    "recall_at_2": "Recall@2",
    "recall_at_4": "Recall@4",
    "recall_at_8": "Recall@8",
    "r_precision": "R-precision",
    "mean_average_precision_at_r": "MAP@R",
    "confidence_auc": "confidence of right against wrong labels, AUC",
    "confidence_accuracy": "confidence module, accuracy on true labels",
    "margin": "learnt margin",
    "training_seconds": "seconds of training",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Of the command.
    """
    main = parser.add_argument_group("what to train")
    main.add_argument("--method", default=DEFAULTS.method, choices=METHODS, help="the loss")
    main.add_argument(
        "--data",
        default="glyphs",
        help="glyphs, glyphs-large, a folder of class folders (or of train and test), or an .npz file of features",
    )
    main.add_argument("--noise", default=DEFAULTS.noise, help="wrong training labels: none or symmetric:RATE")
    main.add_argument(
        "--out", type=Path, help="folder for checkpoint, history and metrics; without it nothing is written"
    )
    main.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")

    _add(parser, "network", {
        "finetune": "train the backbone too, rather than the embedding layer on frozen features",
        "backbone": "your own backbone, as package.module:factory",
        "embedding_size": "size of the embeddings",
    })  # fmt: skip
    data = parser.add_argument_group("images and splits")
    data.add_argument("--image-size", type=int, default=224, help="side of the images of a folder, in pixels")
    data.add_argument("--test-fraction", type=float, default=0.5, help="share of the classes to test on")
    data.add_argument("--split-seed", type=int, default=0, help="seed of that choice")
    _add(parser, "training", {
        "epochs": "passes over the training images",
        "batch_size": "images a step",
        "samples_per_class": "0 for random batches, K for balanced ones with K images of each class",
        "learning_rate": "of the network",
        "proxy_learning_rate": "of proxies and margins",
        "weight_decay": "of the network",
        "seed": "of initialisation, batches and noise",
        "amp": "bf16 for bfloat16 autocast, or none",
    })  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")
    _add(parser, "losses", {
        "alpha": "scale of the similarities",
        "margin": "margin, or where a learnt one starts",
        "beta": "smooth: steepness of the weights",
        "threshold": "smooth: confidence from which a sample counts as positive",
        "confidence_epochs": "smooth: epochs of phase one",
        "confidence_learning_rate": "smooth: learning rate of phase one",
    })  # fmt: skip


def _add(parser: argparse.ArgumentParser, title: str, settings: dict[str, str]) -> None:
    group = parser.add_argument_group(title)
    for name, text in settings.items():
        default, option = getattr(DEFAULTS, name), f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            group.add_argument(option, action="store_true", help=text)
        else:
            group.add_argument(option, type=type(default), default=default, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Train, and print what came out.

    Parameters
    ----------
    arguments : Namespace
        Parsed options.

    Returns
    -------
    int
        0.
    """
    if arguments.resume and arguments.out is None:
        raise UsageError("--resume needs --out, the folder of the run")
    config = TrainingConfig(**{field.name: getattr(arguments, field.name) for field in fields(TrainingConfig)})
    with progress_bar(METHODS[config.method].title) as report:
        report("reading data", 0, 0)
        data = load_data(
            arguments.data,
            image_size=arguments.image_size,
            test_fraction=arguments.test_fraction,
            split_seed=arguments.split_seed,
        )
        result = train(
            config, data, out=arguments.out, resume=arguments.resume, device=arguments.device, on_progress=report
        )
    Console().print(_summary_table(result))
    return 0


def _summary_table(result: TrainingResult) -> Table:
    table = Table(title=f"{METHODS[result.config.method].title}, noise {result.config.noise}", show_header=False)
    for key, title in METRICS.items():
        value = result.summary.get(key)
        if value is not None:
            table.add_row(title, f"{value:.4f}" if key != "training_seconds" else f"{value:.1f}")
    return table
