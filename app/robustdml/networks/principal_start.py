"""An embedding layer that starts from the principal axes of the features: before the first step it does no harm."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

# Samples that the axes are found by; more of them change nothing but the time.
MOST_SAMPLES = 20_000
# Share of the squared similarities of the samples that the embeddings are to keep, which decides how many there are.
KEPT = 0.99
NARROWEST, WIDEST = 64, 512


@dataclass(frozen=True)
class PrincipalAxes:
    """Orthogonal directions of the features, the strongest first."""

    directions: NDArray[np.float64]  # A unit vector a row, float64, (F, F)
    strengths: NDArray[np.float64]  # Sum of the squared components of the unit features along each, float64, (F,)

    @classmethod
    def of(cls, features: NDArray[np.float32]) -> "PrincipalAxes":
        """Find the axes of features at length 1: similarities are cosines, so nothing is centred."""
        if len(features) > MOST_SAMPLES:
            features = features[np.linspace(0, len(features) - 1, MOST_SAMPLES).astype(np.int64)]
        # By the largest component first: the squares of rows of length 1e±30 are no float32.
        scaled = _divided(features, np.abs(features).max(axis=1, keepdims=True, initial=0))
        unit = _divided(scaled, np.linalg.norm(scaled, axis=1, keepdims=True))
        strengths, columns = np.linalg.eigh((unit.T @ unit).astype(np.float64))
        return cls(columns[:, ::-1].T.copy(), np.maximum(strengths[::-1], 0))

    def width(self) -> int:
        """How many embeddings keep `KEPT` of the squared similarities: a multiple of 64, at most `WIDEST`."""
        squares = np.cumsum(self.strengths**2)
        needed = int(np.searchsorted(squares, KEPT * squares[-1])) + 1
        return min(NARROWEST * math.ceil(needed / NARROWEST), WIDEST)

    @torch.no_grad()
    def fill(self, layer: nn.Linear) -> None:
        """Set the layer to the first axes, scaled by √2 and turned at random, and its bias to 0."""
        size = min(layer.out_features, len(self.directions))
        # Turned, because AdamW moves all weights equally far: an axis spread over all rows is suppressed sooner.
        turn = torch.linalg.qr(torch.randn(layer.out_features, layer.out_features, dtype=torch.float64)).Q
        rows = turn[:, :size] @ torch.from_numpy(self.directions[:size])
        layer.weight.copy_(math.sqrt(2) * rows)
        layer.bias.zero_()


def _divided(rows: NDArray[np.float32], by: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows (N, F) by (N, 1); a row of zeros stays what it is."""
    return (rows / np.where(by > 0, by, 1)).astype(np.float32, copy=False)
