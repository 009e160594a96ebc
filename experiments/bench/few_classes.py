"""Sets of 9 to 19 classes of several kinds, half of them for training: what `robust` does where little can be told.

``python -m experiments.bench.few_classes FOLDER`` writes them as files for ``python -m experiments compare --data``.
None of them served for choosing the trials of `robust`; six did for the auditor, by which it filters.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from experiments.bench.audit_sets import Samples, drawn, even, numbered, recordings, speakers, table, texts
from experiments.data.mixtures import Mixture, draw_mixture
from robustdml.data import load_data
from robustdml.data.dataset import divide_classes

MOST_SAMPLES = 2500
# Of the halves, selections and drawings.
SEEDS = (10, 11, 12)


def some(load: Callable[[], Samples], count: int, seed: int) -> Samples:
    """Samples of `count` classes chosen at random."""
    features, labels = load()
    chosen = np.random.default_rng(seed).permutation(np.unique(labels))[:count]
    rows = np.flatnonzero(np.isin(labels, chosen))
    return features[rows], labels[rows]


def sounds() -> Samples:
    data = load_data("sounds")
    labels = data.train.labels, data.test.labels + data.train.num_classes
    return np.concatenate([data.train.inputs, data.test.inputs]), np.concatenate(labels)


def mixture(of: Mixture, seed: int) -> Samples:
    found, _ = draw_mixture(of, seed)
    return np.asarray(found.inputs), found.labels


def sets(seed: int) -> dict[str, Callable[[], Samples]]:
    """All of them by name; tables end with their kind and are centred."""
    return {
        "penbased-table": partial(table, "penbased"),
        "led7digit-table": partial(table, "led7digit"),
        "letter-table": partial(some, partial(table, "letter"), 12, seed),
        "vowels": speakers,
        "acsf1": partial(recordings, "ACSF1", 200),
        "scipy": partial(texts, "scipy", 1),
        "numpy": partial(texts, "numpy", 1),
        "networkx": partial(some, partial(texts, "networkx", 2), 12, seed),
        "sklearn": partial(some, partial(texts, "sklearn", 1), 14, seed),
        "sounds": partial(some, sounds, 14, seed),
        "drawn": partial(drawn, seed, even(12, 100), 12, 1.0, clusters=2),
        "drawn-offset": partial(drawn, seed, even(10, 60), 16, 0.8, offset=3.0),
        "mixture": partial(mixture, Mixture(lambda _: even(14, 150), 16, 6, 5, 0.6, 1.3), seed),
        "mixture-2": partial(mixture, Mixture(lambda _: even(10, 200), 10, 4, 4, 0.8, 1.0), seed),
    }


def write(name: str, samples: Samples, seed: int, folder: Path) -> None:
    """Halve the classes, and write both halves into one file."""
    features, labels = samples
    rows = np.linspace(0, len(labels) - 1, min(len(labels), MOST_SAMPLES)).astype(np.int64)
    features, labels = features[rows], numbered(labels[rows].tolist())
    train, test = (np.isin(labels, part) for part in divide_classes(int(labels.max()) + 1, name, 0.5, seed))
    if name.endswith("table"):
        features = features - features[train].mean(0, dtype=np.float64).astype(np.float32)
    parts = {"features": features[train], "labels": numbered(labels[train].tolist())}
    parts |= {"test_features": features[test], "test_labels": numbered(labels[test].tolist())}
    np.savez(folder / f"{name}-{seed}.npz", **parts)


def write_all(about: str, seeds: Iterable[int], sets_of: Callable[[int], Mapping[str, Callable[[], Samples]]]) -> None:
    """Write the sets of all seeds into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for name, load in sets_of(seed).items():
            write(name, load(), seed, folder)


if __name__ == "__main__":
    write_all(__doc__, SEEDS, sets)
