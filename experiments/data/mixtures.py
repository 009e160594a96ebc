"""Mixtures of Gaussians: features that are drawn, so that the truth about them is known.

Samples scatter about the mean of their class. Classes differ in a few *informative* directions only. In the *nuisance*
directions the samples of all classes have the same large spread; the other directions are empty. A random rotation
mixes all of them. The best embedding is known: the projection on the informative directions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from experiments.data.splits import VALIDATION, divide
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named import NamedData


@dataclass(frozen=True)
class Mixture:
    """How a mixture is drawn; means have a standard deviation of 1 in each informative direction."""

    # Draws the number of samples of each class, int64, (C,).
    sizes: Callable[[np.random.Generator], NDArray[np.int64]]
    num_features: int  # D; `informative` and `nuisance` count directions among them
    informative: int
    nuisance: int
    spread: float  # Standard deviation of the samples of a class in each informative direction
    nuisance_scale: float  # Standard deviation of all samples in each nuisance direction
    offset: float = 0.0  # Length of a vector that is added to all samples


def _equal(num_classes: int, size: int) -> Callable[[np.random.Generator], NDArray[np.int64]]:
    return lambda _: np.full(num_classes, size)


def _zipf(num_classes: int, largest: int) -> Callable[[np.random.Generator], NDArray[np.int64]]:
    """Sizes by Zipf's law: max(2, largest / r) for the r-th class."""
    return lambda _: np.maximum(2, np.round(largest / np.arange(1, num_classes + 1))).astype(np.int64)


def _between(num_classes: int, low: int, high: int) -> Callable[[np.random.Generator], NDArray[np.int64]]:
    return lambda random: random.integers(low, high, size=num_classes, endpoint=True)


MIXTURES = {
    "mixture-few": Mixture(_equal(12, 400), 8, informative=5, nuisance=3, spread=0.6, nuisance_scale=1.5),
    "mixture-many": Mixture(_equal(2000, 20), 128, informative=24, nuisance=40, spread=0.6, nuisance_scale=1.0),
    "mixture-long-tail": Mixture(_zipf(1000, 400), 64, informative=20, nuisance=12, spread=0.5, nuisance_scale=1.2),
    "mixture-pairs": Mixture(_between(4000, 2, 5), 512, informative=48, nuisance=96, spread=0.6, nuisance_scale=1.0),
    # The mean cosine is about ½.
    "mixture-offset": Mixture(
        _equal(160, 12), 64, informative=16, nuisance=24, spread=0.7, nuisance_scale=1.2, offset=7.6
    ),
    "mixture-tail": Mixture(_zipf(240, 300), 48, informative=12, nuisance=12, spread=0.6, nuisance_scale=1.2),
    "mixture-twos": Mixture(_equal(800, 2), 64, informative=20, nuisance=20, spread=0.45, nuisance_scale=0.9),
}


def load_mixture(name: str) -> RetrievalData:
    """Draw a mixture; half of its classes are for training, half for testing.

    Examples
    --------
    >>> load_mixture("mixture-few").train.inputs.shape
    (2400, 8)
    """
    return divide(name, draw_mixture(MIXTURES[name.removesuffix(VALIDATION)])[0])


def draw_mixture(mixture: Mixture, seed: int = 0) -> tuple[Split, NDArray[np.float32]]:
    """All samples of a mixture, and the informative directions, (D, informative)."""
    random = np.random.default_rng(seed)
    sizes = mixture.sizes(random)
    labels = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    directions, _ = np.linalg.qr(random.normal(size=(mixture.num_features, mixture.num_features)))
    truth, nuisance = np.split(directions, [mixture.informative, mixture.informative + mixture.nuisance], axis=1)[:2]
    means = random.normal(size=(len(sizes), mixture.informative))
    about = mixture.spread * random.normal(size=(len(labels), mixture.informative))
    features = (means[labels] + about) @ truth.T
    features += mixture.nuisance_scale * random.normal(size=(len(labels), mixture.nuisance)) @ nuisance.T
    features += mixture.offset * directions.sum(1) / mixture.num_features**0.5
    names = tuple(f"component {number}" for number in range(len(sizes)))
    return Split(features.astype(np.float32), labels, names), truth.astype(np.float32)


NAMED = {
    f"{name}{ending}": NamedData("mixture", partial(load_mixture, f"{name}{ending}"))
    for name in MIXTURES
    for ending in ("", VALIDATION)
}
