"""Wrong labels made on purpose: pure functions of labels, rate and seed that also return what they changed.

A noise is asked for by a text such as ``symmetric:0.5``; `NOISES` maps the part before the colon to its function.
"""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from robustdml_ops.recipes.errors import UsageError

Labels = NDArray[np.int64]
Noise = Callable[[Labels, float, int, int], tuple[Labels, NDArray[np.bool_]]]


def symmetric(labels: Labels, rate: float, seed: int, num_classes: int) -> tuple[Labels, NDArray[np.bool_]]:
    """Move a given share of *each* class to all other classes, uniformly.

    Parameters
    ----------
    labels : ndarray
        True labels, integers in 0..num_classes-1, (N,).
    rate : float
        Share of each class that is relabelled, in [0, 1]; of n samples exactly round(rate·n), halves up.
    seed : int
        Seed of both choices.
    num_classes : int
        Number of classes, C; those without samples receive wrong labels as well.

    Returns
    -------
    noisy : ndarray
        int64, (N,).
    changed : ndarray
        bool, (N,): True where the label is now wrong.

    Raises
    ------
    UsageError
        A rate outside [0, 1], labels of another kind or range, or one class alone with a rate above 0.

    Examples
    --------
    >>> noisy, changed = symmetric(np.repeat(np.arange(4), 10), rate=0.3, seed=0, num_classes=4)
    >>> int(changed.sum()), bool((noisy[~changed] == np.repeat(np.arange(4), 10)[~changed]).all())
    (12, True)
    """
    _check(labels, rate, num_classes)
    random = np.random.default_rng(seed)
    changed = np.zeros(len(labels), dtype=bool)
    by_class = np.argsort(labels, kind="stable")
    for members in np.split(by_class, np.cumsum(np.bincount(labels, minlength=num_classes))[:-1]):
        changed[random.permutation(members)[: int(np.floor(rate * len(members) + 0.5))]] = True
    noisy = labels.astype(np.int64)
    # A draw among the C-1 others: values from the true label on are moved up by one, so that it is never drawn.
    drawn = random.integers(0, max(num_classes - 1, 1), size=int(changed.sum()))
    noisy[changed] = drawn + (drawn >= noisy[changed])
    return noisy, changed


NOISES: dict[str, Noise] = {"symmetric": symmetric}


def apply_noise(spec: str, labels: Labels, seed: int, num_classes: int) -> tuple[Labels, NDArray[np.bool_]]:
    """Corrupt labels as a text says.

    Parameters
    ----------
    spec : str
        ``none``, or ``kind:rate`` with a kind of `NOISES`.
    labels, seed, num_classes
        As in `symmetric`.

    Returns
    -------
    tuple of ndarray
        Noisy labels and the mask of what was changed.

    Raises
    ------
    UsageError
        A text of another form, or an unknown kind.
    """
    noise = parse_noise(spec)
    if noise is None:
        return labels.astype(np.int64), np.zeros(len(labels), dtype=bool)
    kind, rate = noise
    return NOISES[kind](labels, rate, seed, num_classes)


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
    """
    if spec == "none":
        return None
    match = re.fullmatch(r"([a-z-]+):(\d*\.?\d+)", spec)
    if not match or match[1] not in NOISES or float(match[2]) > 1:
        known = ", ".join(f"{kind}:RATE" for kind in NOISES)
        raise UsageError(
            f"noise {spec!r}: expected none or {known} with RATE between 0 and 1, for example symmetric:0.5"
        )
    return match[1], float(match[2])


def _check(labels: Labels, rate: float, num_classes: int) -> None:
    if not 0 <= rate <= 1:
        raise UsageError(f"rate={rate}: the share of wrong labels must lie between 0 and 1")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UsageError(f"labels: {labels.dtype} of shape {labels.shape}; expected integers of shape (N,)")
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise UsageError(f"labels run from {labels.min()} to {labels.max()}; expected 0 to {num_classes - 1}")
    if num_classes < 2 and rate > 0 and len(labels):
        raise UsageError(f"num_classes={num_classes}: a wrong label needs a second class; use noise none")
