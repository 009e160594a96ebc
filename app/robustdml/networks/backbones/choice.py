"""Which backbone a name means, and how it is made."""

from pathlib import Path

from torch import nn

from robustdml.config import UNTRAINED
from robustdml.errors import UsageError
from robustdml.networks.backbones import efficientnet
from robustdml.networks.backbones.efficientnet import load_efficientnet, make_efficientnet
from robustdml.networks.backbones.own import import_backbone
from robustdml.networks.backbones.timm_models import PREFIX, load_timm, make_timm, timm_image_size
from robustdml.networks.models import SmallCNN
from robustdml.networks.pretraining import load_pretrained_cnn, pretrained
from robustdml.progress import OnProgress, silent

FEATURES = "features"
DEFAULT_IMAGE_SIZE = 224


def default_image_size(name: str) -> int:
    """Side of the images that a backbone is made for."""
    return timm_image_size(name) if name.startswith(PREFIX) else DEFAULT_IMAGE_SIZE


def is_own_code(name: str) -> bool:
    """Tell whether a name means code of the user's own, ``package.module:factory``."""
    return ":" in name and not name.startswith(PREFIX)


def load_backbone(
    name: str,
    channels: int,
    image_size: int,
    *,
    weights: Path | None = None,
    augment: bool = True,
    on_progress: OnProgress = silent,
) -> nn.Module:
    """Make a backbone as a run starts with it: trained, but for `UNTRAINED`."""
    _check_channels(name, channels)
    if name == efficientnet.NAME:
        return load_efficientnet(image_size, weights=weights, augment=augment)
    if name.startswith(PREFIX):
        return load_timm(name, weights=weights, augment=augment)
    if weights is not None:
        raise UsageError(
            f"backbone weights {weights}: backbone {name} takes none; those that do are {efficientnet.NAME} and "
            f"{PREFIX}NAME"
        )
    return load_pretrained_cnn(name, on_progress) if name in pretrained() else make_backbone(name, channels, image_size)


def make_backbone(name: str, channels: int, image_size: int) -> nn.Module:
    """Make a backbone whose weights come from elsewhere, such as a model file."""
    if name == FEATURES:
        return nn.Identity()
    if name == UNTRAINED or name in pretrained():
        return SmallCNN(channels)
    if name == efficientnet.NAME:
        return make_efficientnet(image_size)
    if name.startswith(PREFIX):
        return make_timm(name)
    if is_own_code(name):
        return import_backbone(name)
    raise UsageError(
        f"backbone {name!r}: expected {efficientnet.NAME}, {PREFIX}NAME, package.module:factory or {UNTRAINED}"
    )


def _check_channels(name: str, channels: int) -> None:
    takes = {efficientnet.NAME: 3, **dict.fromkeys(pretrained(), 1)}.get(
        name, 3 if name.startswith(PREFIX) else channels
    )
    if channels != takes:
        raise UsageError(
            f"backbone {name} takes images of {takes} channels, and these have {channels}; name another: "
            f"package.module:factory of your own, or {UNTRAINED}, with finetune"
        )
