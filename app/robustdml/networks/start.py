"""How an embedding layer starts: as the features' principal axes, as few as lose little, whitened within classes."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from robustdml.arrays import Array, Floats, Labels, Rows, Singles, evenly
from robustdml.evaluation import JUDGED, judged
from robustdml.networks.models import unit_rows

NARROWEST = 64
# Samples that axes are found by, and samples that widths are measured on.
MOST_SAMPLES, MOST_MEASURED = 5_000, 2_000
# Held-out classes that are fewer tell little about others: the start keeps all directions.
FEWEST_CLASSES = 20
# Recall@1 and MAP@R that the start may lose against the features. Training wins back more in a narrow layer, and where
# it does not, trials keep the features.
MOST_LOST = 0.03
# Beyond so many features and samples the strongest axes alone are found (Halko et al., SIAM Review 53, 2011), with
# spare ones for their precision.
WIDE, SPARE = 512, 32
# Samples that give the length of whitened features.
MOST_COMPARED = 500
# Strengths below this share of the greatest, and spreads within classes below this share of the whole, are rounding.
_NO_AXIS = _NO_SPREAD = 1e-9


@dataclass(frozen=True)
class Start:
    """The strongest principal axes, whitened or not, scaled by √2 and turned at random."""

    width: int  # D
    # A row each, the strongest first, of length 1 before they are whitened, float64, (R, F); where all features stay,
    # any orthogonal basis serves, and the features' own is taken.
    axes: Tensor
    # Recall@1 and MAP@R by width on held-out training classes, as far as they were measured; 0 for the features.
    measured: dict[int, dict[str, float]]

    @torch.no_grad()
    def fill(self, layer: nn.Linear) -> None:
        """Set the layer to the axes, and its bias to 0 for good: its steps would depend on the features' scale."""
        width = layer.out_features
        axes = _completed(self.axes, width)
        # Turned, because AdamW moves all weights equally far: an axis spread over all rows is suppressed sooner.
        turn = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64)).Q
        layer.weight.copy_(math.sqrt(2) * turn[:, : len(axes)] @ axes)
        layer.bias.zero_().requires_grad_(False)

    def embed(self, features: Array) -> Singles:
        """Embeddings of features (N, F) before training, up to their turn and length."""
        return (unit_rows(features) @ self.axes[: self.width].T.float()).numpy()

    def whitened(self, features: Floats, labels: Labels, rows: Rows) -> "Start":
        """Whiten within classes, by these rows of the features (N, F).

        The axes become (S/m + I)^(-1/2) times the axes, up to a turn, at the same mean length of the features; S is the
        covariance within classes, m its mean variance. It is the within-class covariance normalisation of Hatch et al.,
        Interspeech 2006, shrunk by half: a direction in which samples of one class vary a lot says little about it.
        """
        rows = _of_each_class(labels, rows)
        axes = _completed(self.axes, self.width).float()
        projected = unit_rows(features, rows)
        projected = projected if len(axes) == features.shape[1] else projected @ axes.T
        _, own, sizes = np.unique(labels[rows], return_inverse=True, return_counts=True)
        sums = torch.zeros(len(sizes), len(axes)).index_add_(0, torch.from_numpy(own), projected)
        within = projected - (sums / torch.from_numpy(sizes)[:, None])[own]
        covariance = within.T @ within
        mean = covariance.trace() / len(axes)
        if mean <= _NO_SPREAD * projected.square().sum() / len(axes):
            return self
        root = torch.linalg.cholesky(covariance / mean + torch.eye(len(axes)))
        some = projected[:: max(len(projected) // MOST_COMPARED, 1)]
        length = some.norm() / torch.linalg.solve_triangular(root, some.T, upper=False).norm()
        return replace(self, axes=(length * torch.linalg.solve_triangular(root, axes, upper=False)).double())


def make_start(features: Floats, width: int, rows: Rows | None = None) -> Start:
    """Start with the axes of features (N, F), or of some rows if there are any."""
    size = features.shape[1]
    axes = torch.eye(size, dtype=torch.float64) if width >= size else principal_axes(features, width, rows)
    return Start(width, axes, {})


def principal_axes(features: Floats, width: int, rows: Rows | None = None) -> Tensor:
    """Find axes of features (N, F), or of some rows if there are any, at length 1: by the cosine, not centred.

    They are unit vectors, the strongest first, float64, (R, F), at least `width` of them if the rows have as many.
    """
    rows = np.arange(len(features)) if rows is None or not len(rows) else rows
    unit = unit_rows(features, rows[evenly(len(rows), MOST_SAMPLES)])
    if min(unit.shape) > WIDE and width <= min(unit.shape) // 4:
        axes: Tensor = torch.svd_lowrank(unit, width + SPARE, niter=4)[2].T[:width].double()
        return axes
    unit = unit.double()
    if len(unit) >= unit.shape[1]:
        axes = torch.linalg.eigh(unit.T @ unit).eigenvectors.flip(1).T.contiguous()
        return axes
    strengths, columns = torch.linalg.eigh(unit @ unit.T)
    found = strengths > _NO_AXIS * strengths[-1]
    axes = ((columns[:, found] / strengths[found].sqrt()).T @ unit).flip(0)
    return axes


def choose_start(features: Floats, labels: Labels, seed: int, rows: Rows | None = None) -> Start:
    """Take the narrowest start that loses little on half of the classes, by their labels and the others' axes.

    It is measured on some rows, or all: wrong labels hide what is lost.
    """
    size = features.shape[1]
    full = max(size, NARROWEST)
    rows = np.arange(len(labels)) if rows is None else rows
    seen, held = (rows[half] for half in _halves(labels[rows], seed))
    if not len(held):
        return make_start(features, full)
    axes = principal_axes(features, min(full, WIDE // 2), seen)
    measured_on = torch.from_numpy(np.array(features[held], dtype=np.float32)).double()

    def measure(projected: Tensor) -> dict[str, float]:
        found = np.nanmean(judged(projected.float(), labels[held]), axis=0)
        return dict(zip(JUDGED, found.tolist(), strict=True))

    measured, width = {0: measure(measured_on)}, NARROWEST
    while width < size:
        if len(axes) == WIDE // 2 < width:
            axes = principal_axes(features, full, seen)
        if width > NARROWEST and width >= 2 * len(axes):
            break
        measured[width] = measure(measured_on @ axes[:width].T)
        if all(measured[width][name] >= measured[0][name] - MOST_LOST for name in JUDGED):
            return replace(make_start(features, width), measured=measured)
        width *= 2
    return replace(make_start(features, full), measured=measured)


def _completed(axes: Tensor, width: int) -> Tensor:
    """Take the first `width` axes; of few samples there are fewer, and random ones follow."""
    count, size = min(width, axes.shape[1]), axes.shape[1]
    if len(axes) >= count:
        return axes[:count]
    others = torch.randn(size, count - len(axes), dtype=torch.float64)
    completed: Tensor = torch.linalg.qr(torch.cat([axes.T, others], 1)).Q.T
    return completed


def _of_each_class(labels: Labels, rows: Rows) -> Rows:
    """At most about `MOST_SAMPLES` of these rows: some of each class, and of very many classes two of some."""
    if len(rows) <= MOST_SAMPLES:
        return rows
    order = rows[np.argsort(labels[rows], kind="stable")]
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(first, sizes)
    most = max(MOST_SAMPLES // len(sizes), 2)
    every = -(-most * len(sizes) // MOST_SAMPLES)
    chosen: Rows = order[(place < most) & (np.repeat(np.arange(len(sizes)), sizes) % every == 0)]
    return chosen


def _halves(labels: Labels, seed: int) -> tuple[Rows, Rows]:
    """Samples of half of the classes, and at most `MOST_MEASURED` of the other half; none where nothing can be told."""
    present, sizes = np.unique(labels, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(present))
    first, second = np.split(order, [len(order) // 2])
    second = second[: max(2, int(np.searchsorted(np.cumsum(sizes[second]), MOST_MEASURED, side="right")))]
    held = np.flatnonzero(np.isin(labels, present[second]))
    held = held[evenly(len(held), MOST_MEASURED)]
    if len(present) < FEWEST_CLASSES or np.bincount(labels[held]).max() < 2:
        held = held[:0]
    return np.flatnonzero(np.isin(labels, present[first])), held
