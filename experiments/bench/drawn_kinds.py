"""Drawn sets of 50 to 700 classes of ten kinds, half of them for training: features of eight need little of it.

``python -m experiments.bench.drawn_kinds FOLDER`` writes them as files for ``python -m experiments compare --data``.
Others, drawn with other seeds, served for choosing the filter, the start and the trials of `robust`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from experiments.bench.audit_sets import Samples, even, zipf
from experiments.bench.few_classes import write_all

SEEDS = (30, 31, 32)
BASES, WORD = 4, 4


def counts(random: np.random.Generator) -> Samples:
    """Poisson counts of log-normal rates, of rows of unequal length."""
    labels = np.repeat(np.arange(120), 12)
    rates = np.exp(0.9 * random.normal(size=(120, 100)))[labels] * random.gamma(5, 0.2, size=(len(labels), 1))
    return random.poisson(1.2 * rates), labels


def bits(random: np.random.Generator) -> Samples:
    labels = np.repeat(np.arange(150), 10)
    probability = 0.1 + 0.8 * random.beta(0.6, 0.6, size=(150, 128))[labels]
    return random.random(probability.shape) < probability, labels


def heavy_tails(random: np.random.Generator) -> Samples:
    labels = np.repeat(np.arange(100), 15)
    means = random.normal(size=(100, 40))[labels]
    return means + 0.5 * random.standard_t(2.5, size=means.shape), labels


def unequal_spread(random: np.random.Generator) -> Samples:
    labels = np.repeat(np.arange(100), 15)
    spread = 0.8 * np.exp(0.6 * random.normal(size=100))[labels, None]
    return random.normal(size=(100, 48))[labels] + spread * random.normal(size=(len(labels), 48)), labels


def families(random: np.random.Generator, sizes: np.ndarray | None = None) -> Samples:
    """Classes that resemble nine others."""
    sizes = even(120, 12) if sizes is None else sizes
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres = random.normal(size=(12, 64))[np.arange(len(sizes)) % 12]
    means = centres + 0.35 * random.normal(size=centres.shape)
    return means[labels] + 0.35 * random.normal(size=(len(labels), 64)), labels


def families_of_unequal_size(random: np.random.Generator) -> Samples:
    return families(random, np.maximum(3, zipf(80, 120)))


def activations(random: np.random.Generator) -> Samples:
    """What is left above a threshold of random projections."""
    labels = np.repeat(np.arange(200), 8)
    hidden = random.normal(size=(200, 24))[labels] + 0.5 * random.normal(size=(len(labels), 24))
    return np.maximum(hidden @ random.normal(size=(24, 256)) / 5 - 0.3, 0), labels


def sequences(random: np.random.Generator) -> Samples:
    """Counts of the words of sequences that descend from a few ancestors by mutations, classes first."""
    ancestors = random.integers(BASES, size=(8, 600))
    classes = [_mutated(random, ancestors[number % 8], 0.1) for number in range(50)]
    rows, powers = [], BASES ** np.arange(WORD)
    for of_class in classes:
        for start in random.integers(200, size=20):
            sequence = _mutated(random, of_class, 0.1)[start : start + 400]
            words = np.lib.stride_tricks.sliding_window_view(sequence, WORD) @ powers
            rows.append(np.bincount(words, minlength=BASES**WORD))
    return np.stack(rows), np.repeat(np.arange(50), 20)


def pairs_of_samples(random: np.random.Generator) -> Samples:
    return small_classes(random, even(700, 2))


def small_classes(random: np.random.Generator, sizes: np.ndarray | None = None) -> Samples:
    """Classes of two to five samples, under a nuisance in as many directions: they need training, of few steps."""
    sizes = random.integers(2, 6, 500) if sizes is None else sizes
    labels = np.repeat(np.arange(len(sizes)), sizes)
    turn = np.linalg.qr(random.normal(size=(72, 72)))[0]
    means = random.normal(size=(len(sizes), 20))[labels] + 0.5 * random.normal(size=(len(labels), 20))
    return means @ turn[:20] + 0.9 * random.normal(size=(len(labels), 28)) @ turn[20:48], labels


def _mutated(random: np.random.Generator, sequence: np.ndarray, rate: float) -> np.ndarray:
    return np.where(random.random(len(sequence)) < rate, random.integers(BASES, size=len(sequence)), sequence)


KINDS: tuple[Callable[[np.random.Generator], Samples], ...] = (
    counts,
    bits,
    heavy_tails,
    unequal_spread,
    families,
    families_of_unequal_size,
    activations,
    sequences,
    pairs_of_samples,
    small_classes,
)


def sets(seed: int) -> dict[str, Callable[[], Samples]]:
    return {draw.__name__.replace("_", "-"): partial(_drawn, draw, seed) for draw in KINDS}


def _drawn(draw: Callable[[np.random.Generator], Samples], seed: int) -> Samples:
    features, labels = draw(np.random.default_rng(seed))
    return features.astype(np.float32), labels


if __name__ == "__main__":
    write_all(__doc__, SEEDS, sets)
