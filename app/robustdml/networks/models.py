"""Embedding networks: a backbone that makes features, and one linear layer that makes embeddings of them."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from robustdml.arrays import Array, Ints, Singles, blocks
from robustdml.data.image_files import Inputs, batches_of
from robustdml.errors import UsageError, reason_of
from robustdml.progress import OnProgress, silent

# Inputs at a time where nobody says how many: so many, or as many images as have this many pixels together. On a CPU
# larger blocks are given back to the system after each layer, and fetched again a page at a time.
BATCH_SIZE = 512
BATCH_PIXELS, BATCH_PIXELS_CPU = 64 * 224 * 224, 12 * 224 * 224


class SmallCNN(nn.Sequential):
    """Three convolutions with batch norm and pooling, for images of some 32 pixels; 2048 features."""

    def __init__(self, channels: int) -> None:
        sizes = (channels, 32, 64, 128)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            # Pooling before batch norm leaves a quarter of the values to normalise.
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.MaxPool2d(2)]
            layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        # Twice as fast as the default layout on CPUs.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Embedder(nn.Module):
    """Backbone from inputs to features (B, F), then a linear layer to embeddings (B, D), not normalised.

    Without an embedding size there is no layer: the embeddings are the features.
    """

    head: nn.Linear | nn.Identity

    def __init__(self, backbone: nn.Module, in_features: int, embedding_size: int | None) -> None:
        super().__init__()
        self.backbone = backbone
        if embedding_size is None:
            self.head = nn.Identity()
            return
        self.head = nn.Linear(in_features, embedding_size)
        nn.init.kaiming_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed a batch."""
        embeddings: Tensor = self.head(self.backbone(inputs).flatten(1))
        return embeddings


def unit_length(rows: Tensor) -> Tensor:
    """Scale rows (B, D) to length 1; rows of zeros stay zeros."""
    # By the largest component first: the squares of rows of length 1e±30 are no float32.
    largest = rows.detach().abs().amax(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    return nn.functional.normalize(rows / largest, dim=1)


def unit_rows(features: Array, rows: slice | Ints = slice(None)) -> Tensor:
    """Read rows of features, all or some, as float32 of length 1."""
    return unit_length(torch.from_numpy(np.array(features[rows], dtype=np.float32)))


def as_tensor(inputs: Array, device: torch.device) -> Tensor:
    """Bring a batch of a `Split` to a device, as a network takes it."""
    # A copy: a memory-mapped slice is read-only, which a tensor cannot be.
    tensor = torch.from_numpy(np.array(inputs)).to(device)
    return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor.float()


def batch_size_for(shape: tuple[int, ...], device: torch.device) -> int:
    """Inputs of this shape, (N, …), at a time."""
    pixels = int(np.prod(shape[2:])) if len(shape) == 4 else 1
    most = BATCH_PIXELS_CPU if device.type == "cpu" else BATCH_PIXELS
    return min(BATCH_SIZE, max(most // pixels, 1))


@torch.no_grad()
def outputs_in_batches(
    network: nn.Module,
    inputs: Inputs,
    device: torch.device,
    batch_size: int | None = None,
    on_progress: OnProgress = silent,
    first: int = 0,
) -> Iterator[Singles]:
    """Run a network in eval mode over the inputs from `first` on, by batches, and leave it in the mode it was in."""
    size = batch_size or batch_size_for(inputs.shape, device)
    was_training = network.training
    network.eval()
    try:
        slices = blocks(len(inputs), size, first)
        for chosen, batch in zip(slices, batches_of(inputs, slices), strict=True):
            on_progress("features", chosen.start, len(inputs))
            yield network(as_tensor(batch, device)).flatten(1).float().cpu().numpy()
    finally:
        network.train(was_training)


def apply_in_batches(
    network: nn.Module, inputs: Inputs, device: torch.device, on_progress: OnProgress = silent
) -> Singles:
    """Gather what `outputs_in_batches` makes of all inputs, (N, …)."""
    return gathered(outputs_in_batches(network, inputs, device, on_progress=on_progress), len(inputs))


def gathered(batches: Iterable[Singles], count: int) -> Singles:
    """Put batches of outputs into one array from the start: put together at the end, they would take memory twice."""
    whole, done = np.zeros((0, 0), np.float32), 0
    for outputs in batches:
        if not done:
            whole = np.empty((count, outputs.shape[1]), np.float32)
        whole[done : done + len(outputs)] = outputs
        done += len(outputs)
    return whole


def embed_in_batches(
    network: nn.Module, inputs: Inputs, device: torch.device, on_progress: OnProgress = silent
) -> Singles:
    """Embeddings of all inputs at length 1, as a model gives them that was saved."""
    rows = apply_in_batches(network, inputs, device, on_progress=on_progress)
    # In place, and few at a time: there may be millions.
    for block in torch.split(torch.from_numpy(rows), BATCH_SIZE):
        block.copy_(unit_length(block))
    return rows


def count_features(backbone: nn.Module, sample: Array, device: torch.device) -> int:
    """Size of a backbone's features, by trying one input."""
    try:
        return int(apply_in_batches(backbone, sample, device).shape[1])
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        shape = "×".join(map(str, sample.shape[1:]))
        raise UsageError(
            f"the backbone cannot take inputs of {shape} ({reason_of(error)}); an image size that it "
            "is made for may help"
        ) from error
