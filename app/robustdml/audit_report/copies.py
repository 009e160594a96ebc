"""Copies among the samples, found before anything is learnt: the same bytes, and the same picture.

A picture is the same where small grey images correlate by `ALIKE`, whatever its size, contrast or file.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Ints, Labels, Rows
from robustdml.data.dataset import Samples
from robustdml.data.image_files import ImageFiles, small_grey
from robustdml.networks.models import unit_length
from robustdml.progress import OnProgress, silent
from robustdml.tables import write_csv
from robustdml_ops.ops import nearest

COPIES = "copies.csv"
# Correlation of grey images of this side from which on one is a copy of the other. Of Glyphs' images the closest two
# have 0.985, an image and its JPEG file of quality 50 have 0.991.
SIDE, ALIKE = 16, 0.99
# Copies of one image that are looked for, and images up to which all are compared with all.
MOST_ALIKE, MOST_COMPARED = 8, 100_000


def find_copies(samples: Samples, on_progress: OnProgress = silent) -> Ints:
    """Number the groups of copies, −1 for a sample without one, (N,), in the order of their first samples."""
    leader = _same_bytes(samples, on_progress)
    if samples.is_images and 2 <= len(samples) <= MOST_COMPARED:
        on_progress("comparing images", 0, 0)
        small = torch.from_numpy(small_grey(samples.inputs)).float()
        _join_pictures(leader, unit_length(small - small.mean(1, keepdim=True)))
    _, group, sizes = np.unique(leader, return_inverse=True, return_counts=True)
    numbers = np.full(len(sizes), -1, dtype=np.int64)
    numbers[sizes > 1] = np.arange(int((sizes > 1).sum()))
    return numbers[group]


def _same_bytes(samples: Samples, on_progress: OnProgress) -> Ints:
    """The first sample with the same bytes, of each sample, (N,)."""
    first: dict[bytes, int] = {}
    leader = np.empty(len(samples), dtype=np.int64)
    inputs = samples.inputs
    if isinstance(inputs, ImageFiles):
        _, firsts, which = np.unique(inputs.contents, return_index=True, return_inverse=True)
        return firsts[which]
    for row in range(len(samples)):
        if row % 1024 == 0:
            on_progress("looking for copies", row, len(samples))
        key = hashlib.blake2b(np.ascontiguousarray(inputs[row]).tobytes()).digest()
        leader[row] = first.setdefault(key, row)
    return leader


def _join_pictures(leader: Ints, images: Tensor) -> None:
    """Let samples (N,) follow the first one whose picture is the same, through any number of copies."""
    found = nearest(images, images, min(MOST_ALIKE, len(images) - 1), exclude_self=True)
    rows, places = np.nonzero((found.values >= ALIKE).numpy())
    for row, other in zip(rows.tolist(), found.indices.numpy()[rows, places].tolist(), strict=True):
        first, last = sorted((_root(leader, row), _root(leader, other)))
        leader[last] = first
    for row in range(len(leader)):
        leader[row] = leader[leader[row]]  # A leader comes before those that follow it.


def _root(leader: Ints, row: int) -> int:
    while leader[row] != row:
        row = int(leader[row])
    return row


def write_copies(path: Path, samples: Samples, copies: Ints) -> None:
    """Write ``copies.csv``: the samples that have a copy, group by group."""
    parts, names, labels = samples.parts or [""] * len(samples), samples.names(), samples.labels_by_name()
    order = [row for row in np.argsort(copies, kind="stable").tolist() if copies[row] >= 0]
    rows = [(int(copies[row]), names[row], labels[row], parts[row]) for row in order]
    write_csv(path, [("group", "sample", "label", "part"), *rows])


def trained_on(copies: Ints, labels: Labels) -> Rows:
    """Rows to learn from: the first of each group of copies under one label, none where its labels differ.

    A network trained on a copy reproduces the label of its twin. A class keeps two samples.
    """
    kept = np.ones(len(labels), dtype=bool)
    order = np.argsort(copies, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(copies[order])) + 1):
        if copies[rows[0]] >= 0:
            kept[rows[len(set(labels[rows].tolist())) == 1 :]] = False
    few = np.bincount(labels[kept], minlength=int(labels.max()) + 1) < 2
    return np.flatnonzero(kept | few[labels])
