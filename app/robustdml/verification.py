"""Verification: are two samples of one class? Rates and thresholds by histograms of the similarities of pairs."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Doubles, Ints, Labels
from robustdml.data.dataset import members_of_classes
from robustdml.networks.models import unit_length
from robustdml.retrieval import intervals_of_ratios

# Embeddings, (N, D), and their labels, (N,).
Labelled: TypeAlias = tuple[Tensor, Labels]
# Cosines are told apart by 2 / BINS.
BINS = 2**15
# False accept rates that are reported, as far as there are this many pairs for each.
FALSE_ACCEPTS, LEAST_PAIRS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6), 10
# Of more pairs a sample is taken: so many rows of queries and of gallery for those of two classes, and so many rows of
# a class for those of one.
MOST_ROWS, MOST_OF_CLASS = 2**14, 2**10


@dataclass(frozen=True)
class Verification:
    """Verification figures from the similarities of pairs."""

    genuine: int  # Pairs of one class
    impostor: int  # Pairs of two classes
    # By descending threshold, (BINS + 1,): the rates of pairs of two classes and of one that are at least as similar.
    thresholds: Doubles
    far: Doubles
    tar: Doubles
    at: list[dict[str, float]]  # For each false accept rate: far, tar, its interval over classes, threshold
    best: dict[str, float]  # Where TAR − FAR is largest: threshold, tar, far

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON; the ROC (far, tar, threshold) at 64 points at most."""
        rates = np.geomspace(max(1 / self.impostor, FALSE_ACCEPTS[-1]), 1, 64)
        last = np.searchsorted(self.far, rates, side="right") - 1
        roc = [[float(self.far[one]), float(self.tar[one]), float(self.thresholds[one])] for one in np.unique(last)]
        sizes = {"genuine_pairs": self.genuine, "impostor_pairs": self.impostor}
        return {**sizes, "at": self.at, "best": self.best, "roc": roc}


def verify(queries: Tensor, labels: Labels, gallery: Labelled | None = None) -> Verification | None:
    """Compare queries with a gallery, or with each other; None where pairs of one kind are missing."""
    searching, random = (queries, labels), np.random.default_rng(0)
    searched = gallery or searching
    impostor = _impostors(searching, searched, random)
    if not impostor.sum():
        return None
    # At the first threshold nothing is accepted, at the next the highest bin, …
    edges, far = np.linspace(1, -1, BINS + 1), np.append(0, np.cumsum(impostor[::-1])) / impostor.sum()
    rates = [rate for rate in FALSE_ACCEPTS if rate * impostor.sum() >= LEAST_PAIRS]
    places = np.searchsorted(far, rates, side="right") - 1
    genuine, accepted, pairs = _genuine(searching, searched, BINS - places, random)
    if not genuine.sum():
        return None
    tar = np.append(0, np.cumsum(genuine[::-1])) / genuine.sum()
    intervals = intervals_of_ratios(accepted, pairs)
    at = [
        {"far": rate, "tar": float(tar[place]), "low": low, "high": high, "threshold": float(edges[place])}
        for rate, place, (low, high) in zip(rates, places, intervals, strict=True)
    ]
    top = int(np.argmax(tar - far))
    best = {"threshold": float(edges[top]), "tar": float(tar[top]), "far": float(far[top])}
    return Verification(int(genuine.sum()), int(impostor.sum()), edges, far, tar, at, best)


def _bins(similarities: Tensor) -> Tensor:
    """Bin of each cosine, 0 at −1."""
    return ((similarities + 1) * (BINS / 2)).long().clamp_(0, BINS - 1)


def _impostors(one: Labelled, other: Labelled, random: np.random.Generator) -> Ints:
    """Histogram of pairs of two classes."""
    (queries, labels), (gallery, there) = one, other
    histogram = torch.zeros(BINS, dtype=torch.int64, device=queries.device)
    left, right = _some(len(queries), MOST_ROWS, random), _some(len(gallery), MOST_ROWS, random)
    others, their = unit_length(gallery[right].float()), torch.from_numpy(there[right])
    for rows in np.array_split(left, -(-len(left) // 256)):
        different = torch.from_numpy(labels[rows])[:, None] != their
        similarities = unit_length(queries[rows].float()) @ others.T
        histogram += torch.bincount(_bins(similarities)[different.to(queries.device)], minlength=BINS)
    return histogram.cpu().numpy()


def _genuine(one: Labelled, other: Labelled, least: Ints, random: np.random.Generator) -> tuple[Ints, Doubles, Doubles]:
    """Histogram of pairs of one class; by class how many are in the bins from each on, (F, C), and in all, (C,)."""
    (queries, labels), (gallery, there), own = one, other, other is one
    histogram = torch.zeros(BINS, dtype=torch.int64, device=queries.device)
    classes = np.intersect1d(labels, there)
    accepted, pairs = np.zeros((len(least), len(classes))), np.zeros(len(classes))
    left, right = (members_of_classes(given, int(classes.max(initial=0)) + 1) for given in (labels, there))
    for number, k in enumerate(classes):
        rows = left[k][_some(len(left[k]), MOST_OF_CLASS, random)]
        others = rows if own else right[k][_some(len(right[k]), MOST_OF_CLASS, random)]
        similarities = unit_length(queries[rows].float()) @ unit_length(gallery[others].float()).T
        # Each pair of one set once.
        upper = torch.triu_indices(len(rows), len(others), 1, device=queries.device)
        bins = _bins(similarities[upper[0], upper[1]] if own else similarities.flatten())
        histogram.index_add_(0, bins, torch.ones_like(bins))
        accepted[:, number] = (bins.cpu() >= torch.from_numpy(least)[:, None]).sum(1).numpy()
        pairs[number] = len(bins)
    return histogram.cpu().numpy(), accepted, pairs


def _some(count: int, most: int, random: np.random.Generator) -> Ints:
    return np.arange(count) if count <= most else np.sort(random.choice(count, most, replace=False))
