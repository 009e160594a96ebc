"""Bounds of the rate of wrong labels, by the samples whose class the features name most clearly.

The experts, fitted to the given labels, name a class for each sample with a probability u. The given label agrees with
it or not. It disagrees if it is wrong, or if the members of its class do not look alike. The second is rare among the
clearest samples, those of greatest u, so their rate of disagreement bounds the rate r of wrong labels. Among less clear
samples the rate of disagreement e(u) is higher, and no more than r / e(u) of the labels that disagree are wrong.
"""

from typing import NamedTuple

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from robustdml.arrays import Doubles, Mask

# Shares of the samples, clearest first, whose rates of disagreement are bounds.
PREFIXES = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
# Least samples of a bound. Standard errors taken off a lower bound, and added to each of six upper bounds, of which the
# least is used: 0.025 / 6 of the normal distribution.
FEWEST, CHANCE, CHANCE_OF_SIX = 20, 2.0, 2.64


class Clear(NamedTuple):
    """Bounds of the rate of wrong labels, and the rate of disagreement."""

    low: float  # Bounds of the rate of wrong labels
    estimate: float
    high: float
    disagreement: Doubles  # e(u) of each sample, (N,)


def clear_samples(clearness: Doubles, disagrees: Mask) -> Clear:
    """Bound the rate of wrong labels by samples of probability u (N,), and whether their labels disagree (N,)."""
    order = np.argsort(-clearness, kind="stable")
    wrong, sure = disagrees[order].astype(np.float64), clearness[order]
    low, estimate, high = 0.0, float(wrong.mean()), 1.0
    for prefix in PREFIXES:
        count = int(prefix * len(wrong))
        if count < FEWEST:
            continue
        rate = float(wrong[:count].mean())
        if (bound := _highest(rate, count)) < high:
            estimate, high = rate, bound
        # The line through both halves, at the clear end; what the features leave open there is no wrong label.
        first, second = float(wrong[: count // 2].mean()), float(wrong[count // 2 : count].mean())
        spread = (2.25 * (first * (1 - first) + 1 / count) + 0.25 * (second * (1 - second) + 1 / count)) / (count / 2)
        open_part = CHANCE * float(1 - sure[: count // 2].mean())
        low = max(low, 1.5 * first - 0.5 * second - CHANCE * spread**0.5 - open_part)
    falling = IsotonicRegression(increasing=False, out_of_bounds="clip")
    return Clear(min(low, estimate), estimate, high, falling.fit(clearness, disagrees.astype(float)).predict(clearness))


def _highest(rate: float, count: int) -> float:
    """Wilson's upper bound of a rate."""
    square = CHANCE_OF_SIX**2 / count
    half = CHANCE_OF_SIX * (rate * (1 - rate) / count + square / (4 * count)) ** 0.5
    return float((rate + square / 2 + half) / (1 + square))


def with_share(odds: Tensor, share: float) -> Tensor:
    """Probabilities (N,) of which the log-odds are these, shifted until the mean probability is the share."""
    low, high = -60.0, 60.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if float(torch.sigmoid(odds - middle).mean()) > share else (low, middle)
    return torch.sigmoid(odds - high)
