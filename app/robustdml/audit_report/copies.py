"""Images of the test part that are also in the training part, perhaps of another size or stored again."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustdml.audit.features import blocks
from robustdml.data.image_files import Inputs
from robustdml.networks.models import unit_length
from robustdml_ops.ops import nearest

# Correlation of grey images of this side from which on one is a copy of the other. Of Glyphs' images the closest two
# have 0.985, an image and its JPEG file of quality 50 have 0.991.
SIDE, ALIKE = 16, 0.99
# Training images that a test image may be a copy of.
MOST = 5


def find_copies(images: Inputs, parts: NDArray[np.bool_]) -> dict[int, list[int]]:
    """Map test images (`parts` is true) to the training images that they are copies of; (N, channels, S, S)."""
    test, train = np.flatnonzero(parts), np.flatnonzero(~parts)
    found = nearest(_small(images, test), _small(images, train), min(MOST, len(train)))
    alike = (found.values >= ALIKE).numpy()
    return {
        int(row): train[near[same]].tolist()
        for row, near, same in zip(test, found.indices.numpy(), alike, strict=True)
        if same.any()
    }


def _small(images: Inputs, rows: NDArray[np.int64]) -> Tensor:
    """Small grey images of some rows without their mean, of length 1, (n, SIDE²)."""
    out = torch.empty(len(rows), SIDE * SIDE)
    for block in blocks(len(rows), 256):
        grey = torch.from_numpy(np.asarray(images[rows[block]])).float().mean(1)
        small = torch.nn.functional.adaptive_avg_pool2d(grey, SIDE).flatten(1)
        out[block] = unit_length(small - small.mean(1, keepdim=True))
    return out
