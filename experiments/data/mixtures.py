"""Mixtures of Gaussians: features that are drawn, so that the truth about them is known.

A class has a mean, drawn once, and its samples lie about it. All that tells classes apart lies in a few *informative*
directions. In some others, the *nuisance*, samples of all classes differ much and alike; the rest is empty. Then all is
turned at random, so that no feature is one or the other. The embedding to be learned is known: the projection on the
informative directions, far above the untouched features. One that is learned from few classes keeps the directions that
tell *these* apart, and one that is learned from wrong labels may keep any: both may end below the untouched features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from experiments.data.splits import VALIDATION, divide
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named.named import NamedData

_SEED = 0


@dataclass(frozen=True)
class Mixture:
    """How a mixture is drawn; means have a standard deviation of 1 in each informative direction."""

    # Number of samples of each class, all classes of both sides, int64, (C,), from a generator.
    sizes: Callable[[np.random.Generator], NDArray[np.int64]]
    num_features: int  # D, and how many directions of the two kinds there are among them
    informative: int
    nuisance: int
    spread: float  # Standard deviation of the samples of a class in each informative direction
    nuisance_scale: float  # Standard deviation of all samples in each nuisance direction


def _equal(num_classes: int, size: int) -> Callable[[np.random.Generator], NDArray[np.int64]]:
    return lambda _: np.full(num_classes, size)


def _zipf(num_classes: int, largest: int) -> Callable[[np.random.Generator], NDArray[np.int64]]:
    """Sizes by Zipf's law, the r-th largest class has 1/r of the largest, and every class 2 samples at least."""
    return lambda _: np.maximum(2, np.round(largest / np.arange(1, num_classes + 1))).astype(np.int64)


def _between(num_classes: int, low: int, high: int) -> Callable[[np.random.Generator], NDArray[np.int64]]:
    return lambda random: random.integers(low, high, size=num_classes, endpoint=True)


MIXTURES = {
    "mixture-few": Mixture(_equal(12, 400), 8, informative=5, nuisance=3, spread=0.6, nuisance_scale=1.5),
    "mixture-many": Mixture(_equal(2000, 20), 128, informative=24, nuisance=40, spread=0.6, nuisance_scale=1.0),
    "mixture-long-tail": Mixture(_zipf(1000, 400), 64, informative=20, nuisance=12, spread=0.5, nuisance_scale=1.2),
    "mixture-pairs": Mixture(_between(4000, 2, 5), 512, informative=48, nuisance=96, spread=0.6, nuisance_scale=1.0),
}


def load_mixture(name: str) -> RetrievalData:
    """Draw a mixture, half of its classes to train on and half to test on.

    Examples
    --------
    >>> load_mixture("mixture-few").train.inputs.shape
    (2400, 8)
    """
    return divide(name, draw_mixture(MIXTURES[name.removesuffix(VALIDATION)])[0])


def draw_mixture(mixture: Mixture) -> tuple[Split, NDArray[np.float32]]:
    """Draw all samples of a mixture."""
    random = np.random.default_rng(_SEED)
    sizes = mixture.sizes(random)
    labels = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    directions, _ = np.linalg.qr(random.normal(size=(mixture.num_features, mixture.num_features)))
    truth, nuisance = np.split(directions, [mixture.informative, mixture.informative + mixture.nuisance], axis=1)[:2]
    means = random.normal(size=(len(sizes), mixture.informative))
    about = mixture.spread * random.normal(size=(len(labels), mixture.informative))
    features = (means[labels] + about) @ truth.T
    features += mixture.nuisance_scale * random.normal(size=(len(labels), mixture.nuisance)) @ nuisance.T
    names = tuple(f"component {number}" for number in range(len(sizes)))
    return Split(features.astype(np.float32), labels, names), truth.astype(np.float32)


NAMED = {
    f"{name}{ending}": NamedData("mixture", partial(load_mixture, f"{name}{ending}"))
    for name in MIXTURES
    for ending in ("", VALIDATION)
}
