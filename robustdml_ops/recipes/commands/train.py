"""``robustdml train``: one training run."""

import argparse
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from robustdml_ops.recipes.cache import write_text
from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import load_data
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.filters.options import FilterOptions
from robustdml_ops.recipes.methods import METHODS, option_groups
from robustdml_ops.recipes.noise import NOISES
from robustdml_ops.recipes.options import Options, OptionSet
from robustdml_ops.recipes.progress import progress_bar
from robustdml_ops.recipes.reports.run_report import render_run
from robustdml_ops.recipes.train import TrainingResult, train
from robustdml_ops.robust.prism_settings import MOST_REJECTED

WAY_ON = "; --resume goes on after the last whole epoch"
DEFAULTS = TrainingConfig()
NOISE_FORMS = ", ".join(f"{kind}:RATE" for kind in NOISES)

METRICS = {
    "precision_at_1": "Recall@1",
    "recall_at_2": "Recall@2",
    "recall_at_4": "Recall@4",
    "recall_at_8": "Recall@8",
    "r_precision": "R-precision",
    "mean_average_precision_at_r": "MAP@R",
    "clean_auc": "score of right against wrong labels, AUC",
    "filter_precision": "right labels among the kept",
    "filter_kept": "kept by the filter",
    "confidence_accuracy": "confidence head, accuracy on true labels",
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
    main.add_argument("--noise", default=DEFAULTS.noise, help=f"wrong training labels: none, {NOISE_FORMS}")
    main.add_argument(
        "--taxonomy",
        default=DEFAULTS.taxonomy,
        metavar="TREE",
        help="tree of the classes for semantic noise: unicode, wordnet, wordnet:ROOT with a noun above all classes, or "
        "a file of lines node⇥parent; Glyphs come with one",
    )
    main.add_argument(
        "--noise-rate",
        type=float,
        help="share of wrong labels that a filter is told (default: that of --noise, the true one, as in the papers); "
        f"for Otsu's cut the most that is rejected of a class (default: {MOST_REJECTED})",
    )
    main.add_argument(
        "--out", type=Path, help="folder for checkpoint, history, metrics and report; without it nothing is written"
    )
    main.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")

    _add(parser, "network", {
        "finetune": "train the backbone too, rather than the embedding layer on frozen features",
        "backbone": "your own, as package.module:factory; or untrained, for the built-in one as it starts",
        "embedding_size": "size of the embeddings",
    })  # fmt: skip
    data = parser.add_argument_group("images and splits")
    data.add_argument("--image-size", type=int, default=224, help="side of the images of a folder, in pixels")
    data.add_argument("--test-fraction", type=float, default=0.5, help="share of the classes to test on")
    data.add_argument("--split-seed", type=int, default=0, help="seed of that choice")
    training = _add(parser, "training", {
        "epochs": "passes over the training images",
        "batch_size": "images a step",
        "proxy_learning_rate": "of proxies and margins",
        "weight_decay": "of the network",
        "seed": "of initialisation, batches and noise",
        "amp": "bf16 for bfloat16 autocast, or none",
    })  # fmt: skip
    training.add_argument(
        "--samples-per-class",
        type=int,
        metavar="K",
        help="0 for random batches, K for balanced ones with K images of each class (default: as the method asks for)",
    )
    training.add_argument("--learning-rate", type=float, help="of the network (default: as the method asks for)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, …")
    kinds: list[type[Options]] = [*option_groups(), FilterOptions]
    for kind in kinds:
        group = parser.add_argument_group((kind.__doc__ or kind.name).rstrip("."))
        for field in kind.settings():
            # The field that chooses among kinds has the name of its group: --filter.
            flag = f"--{kind.name}" if field.name == "kind" else f"--{kind.name}-{field.name}"
            _add_option(group, flag, field.metadata, dest=f"{kind.name}.{field.name}")


def _config(arguments: argparse.Namespace) -> TrainingConfig:
    given = vars(arguments)
    settings = {field.name: given[field.name] for field in fields(TrainingConfig) if field.name in given}
    groups = (kind(**_given(kind, given)) for kind in option_groups())
    # What is not given of a filter is what the method asks for.
    filtered = replace(METHODS[arguments.method].filter, **_given(FilterOptions, given))
    return TrainingConfig(**settings, options=OptionSet(*groups), filter=filtered)


def _given(kind: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the command line says of a group of settings; the rest is None there."""
    values = {field.name: given[f"{kind.name}.{field.name}"] for field in kind.settings()}
    return {name: value for name, value in values.items() if value is not None}


def _add(parser: argparse.ArgumentParser, title: str, settings: dict[str, str]) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    for name, text in settings.items():
        default = getattr(DEFAULTS, name)
        _add_option(group, f"--{name}", {"text": text, "kind": type(default), "choices": None}, name, default)
    return group


def _add_option(
    group: argparse._ArgumentGroup, flag: str, metadata: Mapping[str, Any], dest: str, default: Any = None
) -> None:
    """Declare an option; without a default, what is not given is None."""
    flag, choices = flag.replace("_", "-"), metadata["choices"]
    if metadata["kind"] is bool:
        action = argparse.BooleanOptionalAction
        group.add_argument(flag, dest=dest, action=action, default=default, help=metadata["text"])
    else:
        metavar = None if choices else dest.rpartition(".")[2].upper()
        group.add_argument(
            flag, dest=dest, type=metadata["kind"], choices=choices, metavar=metavar, default=default,
            help=metadata["text"],
        )  # fmt: skip


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
    config = _config(arguments)
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
        if arguments.out is not None:
            report("report", 0, 0)
            write_text(arguments.out / "report.html", render_run(result))
    Console().print(_summary_table(result))
    return 0


def _summary_table(result: TrainingResult) -> Table:
    table = Table(title=f"{METHODS[result.config.method].title}, noise {result.config.noise}", show_header=False)
    for key, title in METRICS.items():
        value = result.summary.get(key)
        if value is not None:
            table.add_row(title, f"{value:.4f}" if key != "training_seconds" else f"{value:.1f}")
    return table
