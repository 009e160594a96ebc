"""Labels made wrong at random, to try commands and methods out on data whose labels are right.

A noise is named by a text such as ``symmetric:0.5``: a key of `NOISES`, and the rate of wrong training labels.
"""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from robustdml.arrays import Labels, Mask
from robustdml.data import RetrievalData
from robustdml.data.dataset import members_of_classes
from robustdml.errors import UnknownNameError, UsageError

# Labels with noise, and which of them are wrong.
NoisyLabels = tuple[Labels, Mask]


def symmetric(labels: Labels, rate: float, seed: int, num_classes: int) -> NoisyLabels:
    """Move a given share of *each* class to all other classes, uniformly."""
    random = np.random.default_rng(seed)
    changed = choose_of_each_class(labels, rate, random, num_classes)
    noisy = labels.astype(np.int64)
    # A draw among the C-1 others: values from the true label on are moved up by one, so that it is never drawn.
    drawn = random.integers(0, max(num_classes - 1, 1), size=int(changed.sum()))
    noisy[changed] = drawn + (drawn >= noisy[changed])
    return noisy, changed


# Noises by name. Each takes data with right labels, rate and seed.
NOISES: dict[str, Callable[[RetrievalData, float, int], NoisyLabels]] = {
    "symmetric": lambda data, rate, seed: symmetric(data.train.labels, rate, seed, data.train.num_classes)
}


def with_wrong_labels(data: RetrievalData, noise: str, seed: int) -> RetrievalData:
    """Make training labels wrong, and keep the right ones in `Split.true_labels`."""
    named = parse_noise(noise)
    if named is None:
        return data
    kind, rate = named
    train = data.train
    if train.num_classes < 2 and rate > 0:
        raise UsageError(f"num_classes={train.num_classes}: a wrong label needs a second class; use noise none")
    labels, _ = NOISES[kind](data, rate, seed)
    return replace(data, train=replace(train, labels=labels, true_labels=train.labels), noise=noise)


def parse_noise(noise: str) -> tuple[str, float] | None:
    """Read ``KIND:RATE``; ``none`` gives None."""
    if noise == "none":
        return None
    forms = ["none", *(f"{kind}:RATE" for kind in NOISES)]
    match = re.fullmatch(r"([a-z-]+):(\d*\.?\d+)", noise)
    if not match or match[1] not in NOISES:
        raise UnknownNameError("noise", noise, forms)
    if float(match[2]) > 1:
        raise UsageError(f"noise {noise!r}: expected one of {', '.join(forms)} with RATE between 0 and 1")
    return match[1], float(match[2])


def round_half_up(count: float) -> int:
    """Whole number nearest to a count of samples, halves up."""
    return int(np.floor(count + 0.5))


def choose_of_each_class(labels: Labels, rate: float, random: np.random.Generator, num_classes: int) -> Mask:
    """Choose at random which samples get a wrong label: of n samples of a class exactly round(rate·n), halves up."""
    chosen = np.zeros(len(labels), dtype=bool)
    for members in members_of_classes(labels, num_classes):
        chosen[random.permutation(members)[: round_half_up(rate * len(members))]] = True
    return chosen
