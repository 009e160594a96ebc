"""What is around a network for photographs: its own normalisation, and random crops while it trains."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Share of the image's area that a random crop has, and its width over its height.
CROP_AREA = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)


class PhotoBackbone(nn.Module):
    """Crops and flips images in [0, 1] at random in training, normalises them, applies a network."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float], augment: bool = True) -> None:
        super().__init__()
        self.network = network
        self.augment = augment
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Make features."""
        if self.training and self.augment:
            images = random_crops(images)
        features: Tensor = self.network((images - self.mean) / self.std)
        return features


def random_crops(images: Tensor) -> Tensor:
    """Cut a random rectangle out of each image, flip half of them left to right, and scale them to the old size."""
    area, shape, x, y, side = torch.rand(5, len(images), device=images.device)
    area = CROP_AREA[0] + area * (CROP_AREA[1] - CROP_AREA[0])
    low, high = (math.log(ratio) for ratio in CROP_RATIO)
    ratio = torch.exp(low + shape * (high - low))
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    # Places in the image, from −1 to 1, of the crop's pixels. Elementwise, because autocast would round a product of
    # matrices. A crop is at most as large as the image, so scaling only ever enlarges, and bilinear sampling skips no
    # pixels.
    columns = (
        torch.where(side < 0.5, -width, width)[:, None] * _centres(images, 3) + ((2 * x - 1) * (1 - width))[:, None]
    )
    rows = height[:, None] * _centres(images, 2) + ((2 * y - 1) * (1 - height))[:, None]
    shape_of_grid = (len(images), rows.shape[1], columns.shape[1])
    grid = torch.stack([columns[:, None].expand(shape_of_grid), rows[:, :, None].expand(shape_of_grid)], dim=3)
    return nn.functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)


def _centres(images: Tensor, dim: int) -> Tensor:
    """Centres of the pixels along a side, from −1 to 1."""
    size = images.shape[dim]
    return (2 * torch.arange(size, device=images.device) + 1) / size - 1
