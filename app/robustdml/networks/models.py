"""Embedding networks: a backbone that makes features, and one linear layer that makes embeddings of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robustdml.errors import UsageError
from robustdml.progress import OnProgress, silent

# Inputs at a time where nobody says how many: so many, or as many images as have this many pixels together.
BATCH_SIZE = 512
BATCH_PIXELS = 64 * 224 * 224
# Samples that the axes are found by; more of them change nothing but the time.
MOST_SAMPLES = 20_000
# Share of the squared similarities of the samples that the embeddings are to keep, which decides how many there are.
KEPT = 0.99
NARROWEST, WIDEST = 64, 512


class SmallCNN(nn.Sequential):
    """Three convolutions with batch norm and pooling, for images of some 32 pixels; 2048 features."""

    def __init__(self, channels: int) -> None:
        sizes = (channels, 32, 64, 128)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            # Pooling before batch norm leaves a quarter of the values to normalise.
            layers += [
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.MaxPool2d(2),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        # Twice as fast as the default layout on CPUs.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Embedder(nn.Module):
    """Backbone from inputs to features (B, F), then a linear layer to embeddings (B, D), not normalised."""

    def __init__(self, backbone: nn.Module, in_features: int, embedding_size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(in_features, embedding_size)
        nn.init.kaiming_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed a batch."""
        embeddings: Tensor = self.head(self.backbone(inputs).flatten(1))
        return embeddings


@dataclass(frozen=True)
class PrincipalAxes:
    """Orthogonal directions of the features, the strongest first: a layer that starts from them does no harm."""

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


def as_tensor(inputs: NDArray[np.generic], device: torch.device) -> Tensor:
    """Bring a batch of a `Split` to a device, as a network takes it."""
    # A copy: a memory-mapped slice is read-only, which a tensor cannot be.
    tensor = torch.from_numpy(np.array(inputs)).to(device)
    return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor


@torch.no_grad()
def outputs_in_batches(
    network: nn.Module,
    inputs: NDArray[np.generic],
    device: torch.device,
    batch_size: int | None = None,
    on_progress: OnProgress = silent,
) -> Iterator[NDArray[np.float32]]:
    """Run a network in eval mode over all inputs, batch by batch, and leave it in the mode it was in."""
    if batch_size is None:
        pixels = int(np.prod(inputs.shape[2:])) if inputs.ndim == 4 else 1
        batch_size = min(BATCH_SIZE, max(BATCH_PIXELS // pixels, 1))
    was_training = network.training
    network.eval()
    try:
        for start in range(0, len(inputs), batch_size):
            on_progress("features", start, len(inputs))
            yield network(as_tensor(inputs[start : start + batch_size], device)).flatten(1).float().cpu().numpy()
    finally:
        network.train(was_training)


def apply_in_batches(
    network: nn.Module,
    inputs: NDArray[np.generic],
    device: torch.device,
    batch_size: int | None = None,
    on_progress: OnProgress = silent,
) -> NDArray[np.float32]:
    """Gather what `outputs_in_batches` makes of all inputs."""
    return np.concatenate(list(outputs_in_batches(network, inputs, device, batch_size, on_progress)))


def count_features(backbone: nn.Module, sample: NDArray[np.generic], device: torch.device) -> int:
    """Size of a backbone's features, by trying one input."""
    try:
        return int(apply_in_batches(backbone, sample, device).shape[1])
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        shape = "×".join(map(str, sample.shape[1:]))
        raise UsageError(
            f"the backbone cannot take inputs of {shape} ({' '.join(str(error).split())[:200]}); an image size that it "
            "is made for may help"
        ) from error
