"""The classes that take part in a step: those of the batch, and a random share of the others."""

from typing import NamedTuple

import torch
from torch import Tensor

# Of SplitMix64, the mixing function of Steele, Lea and Flood (OOPSLA 2014), as signed numbers.
_STEP = -0x61C8864680B583EB
_FIRST = -0x40A7B892E31B1A47
_SECOND = -0x6B2FB644ECCEEE15


class Drawn(NamedTuple):
    """M distinct classes. The first count once; each of the others stands for ``weight`` classes."""

    classes: Tensor  # (M,) int64
    labels: Tensor  # (B,) int64: where among them the class of each sample is; below 0: nowhere, as its label
    certain: int  # how many count once: the batch's classes, filled up with others to the size of the batch
    weight: float  # ≥ 1; 1 where all classes are there

    def weights(self, dtype: torch.dtype) -> Tensor:
        """How many classes each stands for, (M,)."""
        certain, others = self.certain, len(self.classes) - self.certain
        one = torch.ones((), dtype=dtype, device=self.classes.device)
        return torch.cat([one.expand(certain), (self.weight * one).expand(others)])


def draw_classes(labels: Tensor, num_classes: int, share: float, state: Tensor, shard: int = 0) -> Drawn:
    """Draw the classes of a step: a pure function of its arguments, with the same result on every device.

    Parameters
    ----------
    labels : Tensor
        (B,) int64 in 0 … C − 1, or below 0 for samples whose class is not among these C.
    num_classes : int
        C.
    share : float
        In (0, 1): how large a part of the others is drawn.
    state : Tensor
        (2,) int64: seed and step.
    shard : int
        Of the classes, where they are divided: each draws its own.

    Returns
    -------
    Drawn
        Of min(B, C) + share·(C − min(B, C)) classes, rounded, and at least one more than the first: a size that does
        not depend on the labels, so that nothing waits for the device.

    Notes
    -----
    The classes that the batch lacks are cut into as many intervals as are to be drawn, one is drawn from each, and all
    are moved around the circle by one random number. So every one is drawn with the same probability, none twice, and
    the work is that of the classes drawn, not of all. What the first intervals gave fills the batch's classes up to a
    number that is known beforehand, ``certain``. A class that the batch lacks is among these with some probability
    p, and counts once, or is drawn by the other intervals with the probability (1 − p)/weight, and counts ``weight``
    times: once, on average, whatever p is.
    """
    B, C = len(labels), num_classes
    certain = min(B, C)
    drawn = max(1, round(share * (C - certain))) if certain < C else 0
    places, batch, present = _distinct(labels, C)
    slots = torch.arange(certain + drawn, device=labels.device)
    # The j-th of N others is j and as many more as there are classes of the batch up to it.
    others, intervals = C - present, (certain + drawn - present).clamp(min=1)
    j = (slots - present).clamp(min=0)
    low, high = j * others // intervals, (j + 1) * others // intervals
    random = _random(state, shard, certain + drawn + 1)
    turn, others = random[-1], others.clamp(min=1)
    picked = (low + random[:-1] % (high - low).clamp(min=1) + turn % others) % others
    picked = picked + torch.searchsorted(batch - torch.arange(B, device=labels.device), picked, right=True)
    first = torch.where(slots[:certain] < present, batch[:certain], picked[:certain])
    return Drawn(torch.cat([first, picked[certain:]]), places, certain, (C - certain) / drawn if drawn else 1.0)


def _distinct(labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where each label is among the distinct ones; these, ascending, (B,); and how many they are, ().

    Behind them are numbers that are no class, ascending as well. A label below 0 stays as it is.
    """
    ordered, order = torch.sort(labels, stable=True)
    before = torch.cat([ordered.new_full((1,), -1), ordered])[:-1]
    rank = (((ordered >= 0) & (ordered != before)).cumsum(0)) - 1
    places = torch.where(labels < 0, labels, torch.empty_like(rank).scatter(0, order, rank))
    # Place 0 takes the labels below 0. Equal labels write one value to one place.
    distinct = num_classes - 1 + torch.arange(len(labels) + 1, device=labels.device)
    return places, distinct.scatter(0, rank + 1, ordered)[1:], (rank + 1).amax() if len(labels) else rank.sum()


def _random(state: Tensor, shard: int, n: int) -> Tensor:
    """Numbers in 0 … 2^63 − 1, (n,): SplitMix64, started anew for each seed, step and shard."""
    seed, step = state.unbind()
    start = _mix(seed * _FIRST + step) + shard
    return _mix(start + torch.arange(n, device=state.device) * _STEP) & torch.iinfo(torch.int64).max


def _mix(x: Tensor) -> Tensor:
    """A bijection of int64 that looks random: multiplications wrap around."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shifted to the right with zeros from the left; int64 itself would repeat its sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
