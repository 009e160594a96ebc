"""Noise by name, and what each model needs beside the labels."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustdml.errors import UnknownNameError, UsageError
from robustdml.noise.shares import Labels, NoisyLabels
from robustdml.noise.symmetric import symmetric


@dataclass(frozen=True)
class NoiseSources:
    """Where the models that need more than labels get it; called only for a noise that asks for it."""

    features: Callable[[], NDArray[np.float32]]  # Returns what the samples look like, (N, F)
    tree: Callable[[], Any]  # Returns the tree of the classes


# Each takes labels, rate, seed, number of classes and the sources.
NOISES: dict[str, Callable[[Labels, float, int, int, NoiseSources], NoisyLabels]] = {
    "symmetric": lambda labels, rate, seed, classes, _: symmetric(labels, rate, seed, classes),
}


def apply_noise(spec: str, labels: Labels, seed: int, num_classes: int, sources: NoiseSources) -> NoisyLabels:
    """Corrupt labels as a text says.

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

    Examples
    --------
    >>> noise_rate("small-cluster:0.5"), noise_rate("none")
    (0.5, 0.0)
    """
    noise = parse_noise(spec)
    return 0.0 if noise is None else noise[1]
