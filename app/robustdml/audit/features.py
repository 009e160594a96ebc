"""Features as unit rows on their principal axes, and near duplicates among the rows."""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Array, Ints, Labels, blocks, evenly
from robustdml.networks.models import unit_rows

# Dimensions beyond these say little about classes, and cost a product each.
WIDEST = 256
# Scaled columns end here: single values far out say no more.
FAR = 5.0
# Rows that the axes are found by.
MOST_ROWS = 50_000
# Rows at a time: their similarities with 10⁴ classes take 160 MB.
BLOCK = 4096
# Of rows with classes at a time: 64 MB.
_MOST_SIMILARITIES = 2**24


def block_of(num_classes: int) -> int:
    """Rows at a time whose similarities with all classes are not too many."""
    return max(min(BLOCK, _MOST_SIMILARITIES // num_classes), 1)


def principal_rows(features: Array, scaled: bool = False) -> Tensor:
    """Bring features into the form that classes are told apart in: rows of length 1, or columns of variance 1."""
    count, width = features.shape
    chosen = evenly(count, MOST_ROWS)
    centre, spread = torch.zeros(width), torch.ones(width)

    def read(rows: slice | Ints) -> Tensor:
        if not scaled:
            return unit_rows(features, rows)
        found = torch.from_numpy(np.array(features[rows], dtype=np.float64))
        return ((found - centre) / spread).float().clamp(-FAR, FAR)

    if scaled:
        some = np.asarray(features[chosen], dtype=np.float64)
        centre, spread = torch.from_numpy(some.mean(0)), torch.from_numpy(some.std(0))
        spread[spread <= 1e-7 * centre.abs()] = math.inf
    mean = torch.zeros(width, dtype=torch.float64)
    moments = torch.zeros(width, width, dtype=torch.float64)
    for block in blocks(len(chosen), BLOCK):
        found = read(chosen[block])
        mean += found.sum(0)
        moments += found.T @ found
    mean /= len(chosen)
    axes = torch.eye(width)
    if width > WIDEST:
        covariance = moments / len(chosen) - torch.outer(mean, mean)
        # Columns of one value have no part in an axis, and with many of them LAPACK may not converge.
        spreads = covariance.diagonal()
        live = (spreads > 0) | (spreads.max() <= 0)
        strongest = torch.linalg.eigh(covariance[live][:, live]).eigenvectors[:, -WIDEST:].float()
        axes = torch.zeros(width, strongest.shape[1])
        axes[live] = strongest
    out = torch.empty(count, axes.shape[1])
    for block in blocks(count, BLOCK):
        out[block] = (read(block) - mean.float()) @ axes
    return out


# Length of the common column that makes cosines of distances, in root mean squares of the rows.
LIFT = 4.0


def lifted(rows: Tensor, *others: Tensor) -> list[Tensor]:
    """Rows (N, F) and others (M, F) with one more column, so that the nearest have the greatest cosines."""
    far = rows.square().sum(1).mean().sqrt().clamp(min=1e-6) * LIFT
    return [torch.cat([one, far.expand(len(one), 1)], 1) for one in (rows, *others)]


# Columns of so few values, in the median, are counts or answers: equal rows of them are no copies.
_FEW_VALUES, _COLUMNS_OF = 16, 2048


def standard_order(features: Array) -> Ints:
    """An order of the rows (N, F) that depends on neither their order nor their scale."""
    direction = np.random.default_rng(0).normal(size=features.shape[1])
    place = [np.asarray(features[block], np.float64) @ direction for block in blocks(len(features), BLOCK)]
    order = np.argsort(np.concatenate(place), kind="stable")
    return order[np.random.default_rng(1).permutation(len(order))]


def distinct_rows(features: Array, labels: Labels) -> tuple[Ints, Ints]:
    """The first of each set of equal rows under one label, (n,), and for each row which of them it is, (N,).

    Copies of a sample vouch for its label, right or wrong.
    """
    some = np.sort(np.asarray(features[evenly(len(features), _COLUMNS_OF)]), axis=0)
    if np.median((np.diff(some, axis=0) != 0).sum(0) + 1) <= _FEW_VALUES:
        return np.arange(len(features)), np.arange(len(features))
    known: dict[tuple[int, bytes], int] = {}
    firsts: list[int] = []
    which = np.empty(len(features), dtype=np.int64)
    for row in range(len(features)):
        key = int(labels[row]), hashlib.blake2b(np.asarray(features[row]).tobytes(), digest_size=16).digest()
        which[row] = known.setdefault(key, len(firsts))
        if which[row] == len(firsts):
            firsts.append(row)
    return np.array(firsts), which


# Cosine from which on two samples are near duplicates.
ALIKE = 0.9995
# Samples compared with each other at a time: of a larger class, those that are neighbours along its longest axis.
_WINDOW = 4096


def duplicate_groups(features: Array, alike: float, *classes: Ints) -> Ints:
    """Number the groups of near duplicates, whatever their labels.

    Of more samples than a window has, those are compared that lie together along the longest axis of all samples, or of
    those that share a class by one of the assignments, (N,) each.
    """
    leader, every = np.arange(len(features)), np.concatenate([np.zeros(len(features), np.int64), *classes])
    order = np.argsort(every, kind="stable")
    starts = np.flatnonzero(np.diff(every[order], prepend=-1))
    for members in np.split(order % len(features), starts[1:]):
        for window in _windows(features, np.unique(members)):
            _join(features, window, leader, alike)
    # A leader comes before its followers, so that one pass over them in order finds the first of each group.
    for row in np.flatnonzero(leader != np.arange(len(leader))):
        leader[row] = leader[leader[row]]
    firsts, group, sizes = np.unique(leader, return_inverse=True, return_counts=True)
    numbers = np.full(len(firsts), -1, dtype=np.int64)
    numbers[sizes > 1] = np.arange(int((sizes > 1).sum()))
    return numbers[group]


def _windows(features: Array, members: Ints) -> list[Ints]:
    """The members of a class, or overlapping stretches of them along their longest axis."""
    if len(members) <= _WINDOW:
        return [members]
    sample = unit_rows(features, members[evenly(len(members), _WINDOW)])
    axis = torch.linalg.eigh((sample - sample.mean(0)).T @ (sample - sample.mean(0))).eigenvectors[:, -1]
    place = torch.cat([unit_rows(features, members[block]) @ axis for block in blocks(len(members), BLOCK)])
    along = members[torch.argsort(place, stable=True).numpy()]
    return [np.sort(along[start : start + _WINDOW]) for start in range(0, len(along), _WINDOW // 2)]


def _join(features: Array, rows: Ints, leader: Ints, alike: float) -> None:
    """Let each row follow the first row that is like it."""
    if len(rows) < 2:
        return
    unit = unit_rows(features, rows)
    for block in blocks(len(rows), 1024):
        like = unit[block] @ unit.T >= alike
        # A row of zeros is like nothing, not even itself.
        first = torch.where(like, torch.arange(len(rows)), len(rows)).amin(1).numpy()
        found = first < len(rows)
        own = rows[block][found]
        leader[own] = np.minimum(leader[own], rows[first[found]])
