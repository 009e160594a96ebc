"""Noise by name, and what each model needs beside the labels."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustdml_ops.recipes.errors import UnknownNameError, UsageError
from robustdml_ops.recipes.noise.class_conditional import class_conditional
from robustdml_ops.recipes.noise.long_tailed import long_tailed
from robustdml_ops.recipes.noise.semantic import semantic
from robustdml_ops.recipes.noise.shares import Labels, NoisyLabels
from robustdml_ops.recipes.noise.small_cluster import small_cluster
from robustdml_ops.recipes.noise.symmetric import symmetric
from robustdml_ops.recipes.taxonomy import ClassTree


@dataclass(frozen=True)
class NoiseSources:
    """Where the models that need more than labels get it; called only for a noise that asks for it.

    Attributes
    ----------
    features : callable
        Returns what the samples look like, (N, F).
    tree : callable
        Returns the tree of the classes.
    """

    features: Callable[[], NDArray[np.float32]]
    tree: Callable[[], ClassTree]


# Each takes labels, rate, seed, number of classes and the sources.
NOISES: dict[str, Callable[[Labels, float, int, int, NoiseSources], NoisyLabels]] = {
    "symmetric": lambda labels, rate, seed, classes, _: symmetric(labels, rate, seed, classes),
    "small-cluster": lambda labels, rate, seed, classes, sources: small_cluster(
        labels, rate, seed, classes, sources.features()
    ),
    "semantic": lambda labels, rate, seed, _, sources: semantic(labels, rate, seed, sources.tree()),
    "long-tailed": lambda labels, rate, seed, classes, _: long_tailed(labels, rate, seed, classes),
    "class-conditional": lambda labels, rate, seed, classes, sources: class_conditional(
        labels, rate, seed, classes, sources.features()
    ),
}


def apply_noise(spec: str, labels: Labels, seed: int, num_classes: int, sources: NoiseSources) -> NoisyLabels:
    """Corrupt labels as a text says.

    Parameters
    ----------
    spec : str
        ``none``, or ``kind:rate`` with a kind of `NOISES`.
    labels, seed, num_classes
        As in `symmetric`.
    sources : NoiseSources
        Features and tree, for the kinds that need them.

    Returns
    -------
    tuple of ndarray
        Noisy labels and the mask of what was changed.

    Raises
    ------
    UsageError
        A text of another form, an unknown kind, or what the model itself refuses.

    Examples
    --------
    >>> labels = np.repeat(np.arange(4), 10)
    >>> noisy, changed = apply_noise("symmetric:0.2", labels, 0, 4, sources=None)
    >>> int(changed.sum()), bool((noisy[~changed] == labels[~changed]).all())
    (8, True)
    """
    noise = parse_noise(spec)
    if noise is None:
        return labels.astype(np.int64), np.zeros(len(labels), dtype=bool)
    kind, rate = noise
    return NOISES[kind](labels, rate, seed, num_classes, sources)


def parse_noise(spec: str) -> tuple[str, float] | None:
    """Read ``kind:rate``; ``none`` gives None.

    Parameters
    ----------
    spec : str
        The text.

    Returns
    -------
    tuple or None
        Kind and rate.

    Raises
    ------
    UsageError
        As in `apply_noise`.

    Examples
    --------
    >>> parse_noise("symmetric:0.5")
    ('symmetric', 0.5)
    """
    if spec == "none":
        return None
    forms = ["none", *(f"{kind}:RATE" for kind in NOISES)]
    match = re.fullmatch(r"([a-z-]+):(\d*\.?\d+)", spec)
    if not match or match[1] not in NOISES:
        raise UnknownNameError("noise", spec, forms)
    if float(match[2]) > 1:
        raise UsageError(f"noise {spec!r}: expected one of {', '.join(forms)} with RATE between 0 and 1")
    return match[1], float(match[2])


def noise_rate(spec: str) -> float:
    """Share of wrong labels that a text asks for.

    Parameters
    ----------
    spec : str
        As in `apply_noise`.

    Returns
    -------
    float
        0 for ``none``.

    Examples
    --------
    >>> noise_rate("small-cluster:0.5"), noise_rate("none")
    (0.5, 0.0)
    """
    noise = parse_noise(spec)
    return 0.0 if noise is None else noise[1]
