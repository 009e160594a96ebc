"""Retrieval by the untouched features of the named data sets: ``python -m experiments.bench.suite_table [NAME …]``.

Prints a row of ``docs/data.md`` for each; images go through the frozen backbone that is theirs. A name that lacks what
it is read from gets a row that says so.
"""

import argparse

import numpy as np
import torch

from experiments.data.mixtures import MIXTURES, draw_mixture
from experiments.data.splits import VALIDATION
from robustdml.config import TrainingConfig
from robustdml.data import Split, load_data
from robustdml.data.named import NAMED
from robustdml.errors import UsageError
from robustdml.networks.preparation import prepare
from robustdml.retrieval import retrieval_metrics

COLUMNS = ("`--data`", "kind", "training", "test", "a class", "features", "Recall@1", "MAP@R")


def classes_and_samples(split: Split) -> str:
    """As ``13 × 10,013``."""
    return f"{split.num_classes:,} × {len(split):,}"


def row(name: str) -> list[str]:
    """Sizes, and Recall@1 and MAP@R of the untouched features on the test classes."""
    data = load_data(name)
    prepared = prepare(TrainingConfig(), data, torch.device("cpu")).data
    metrics = retrieval_metrics(prepared.test.inputs, prepared.test.labels)
    sizes = np.concatenate([np.bincount(split.labels) for split in (data.train, data.test)])
    of_class = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()}–{sizes.max()}"
    return [
        f"`{name}`",
        NAMED[name].kind,
        classes_and_samples(data.train),
        classes_and_samples(data.test),
        of_class,
        f"{prepared.test.inputs.shape[1]:,}",
        f"{metrics['precision_at_1']:.3f}",
        f"{metrics['mean_average_precision_at_r']:.3f}",
    ]


def truth_of_mixture(name: str) -> str:
    """The same two figures for the informative directions of a mixture alone."""
    test = load_data(name).test
    metrics = retrieval_metrics(test.inputs @ draw_mixture(MIXTURES[name])[1], test.labels)
    return f"{metrics['precision_at_1']:.3f}, {metrics['mean_average_precision_at_r']:.3f}"


def main() -> None:
    """Print the tables of docs/data.md, or the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets (default: all)")
    chosen = parser.parse_args().names or [name for name in NAMED if not name.endswith(VALIDATION)]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in chosen:
        try:
            print(f"| {' | '.join(row(name))} |", flush=True)
        except UsageError as error:
            print(f"| `{name}` | {error} |", flush=True)
    mixtures = [name for name in chosen if name in MIXTURES]
    if mixtures:
        print("\n| mixture | Recall@1, MAP@R of the informative directions alone |\n|---|---|")
    for name in mixtures:
        print(f"| `{name}` | {truth_of_mixture(name)} |", flush=True)


if __name__ == "__main__":
    main()
