"""Which backbone a name means, and how it is made."""

from pathlib import Path

from torch import nn

from robustdml_ops.recipes.config import UNTRAINED
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.networks.backbones import efficientnet
from robustdml_ops.recipes.networks.backbones.efficientnet import load_efficientnet, make_efficientnet
from robustdml_ops.recipes.networks.backbones.own import import_backbone
from robustdml_ops.recipes.networks.backbones.timm_models import PREFIX, load_timm, make_timm, timm_image_size
from robustdml_ops.recipes.networks.models import SmallCNN
from robustdml_ops.recipes.networks.pretraining import PRETRAINED, load_pretrained_cnn
from robustdml_ops.recipes.progress import OnProgress, silent

FEATURES = "features"
DEFAULT_IMAGE_SIZE = 224


def default_image_size(name: str) -> int:
    """Side of the images that a backbone is made for.

    Parameters
    ----------
    name : str
        As `TrainingConfig.backbone`.

    Returns
    -------
    int
        In pixels; 224 where the backbone does not say.

    Raises
    ------
    UsageError
        A network of timm that is not there.
    """
    return timm_image_size(name) if name.startswith(PREFIX) else DEFAULT_IMAGE_SIZE


def is_own_code(name: str) -> bool:
    """Tell whether a name means code of the user's own, ``package.module:factory``.

    Parameters
    ----------
    name : str
        Of a backbone.

    Returns
    -------
    bool
        Whether making it imports that code.
    """
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
    """Make a backbone as a run starts with it: trained, but for `UNTRAINED`.

    Parameters
    ----------
    name : str
        ``efficientnet-lite0``, ``timm:NAME``, ``package.module:factory``, one of
        `robustdml_ops.recipes.networks.pretraining.PRETRAINED`, or ``untrained``.
    channels : int
        Of the images.
    image_size : int
        Their side in pixels.
    weights : Path, optional
        File of weights for the first two.
    augment : bool
        Whether the first two crop and flip at random in training mode.
    on_progress : callable
        Told of pretraining.

    Returns
    -------
    Module
        From images in [0, 1], (B, channels, S, S), to features.

    Raises
    ------
    UsageError
        What the name means is not there, or does not go with the images or the weights.
    """
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
    return load_pretrained_cnn(name, on_progress) if name in PRETRAINED else make_backbone(name, channels, image_size)


def make_backbone(name: str, channels: int, image_size: int) -> nn.Module:
    """Make a backbone whose weights come from elsewhere, such as a model file.

    Parameters
    ----------
    name, channels, image_size
        As in `load_backbone`; ``features`` is the identity.

    Returns
    -------
    Module
        Untrained, but for what a factory of one's own does.

    Raises
    ------
    UsageError
        What the name means is not there.
    """
    if name == FEATURES:
        return nn.Identity()
    if name == UNTRAINED or name in PRETRAINED:
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
    takes = {efficientnet.NAME: 3, **dict.fromkeys(PRETRAINED, 1)}.get(name, 3 if name.startswith(PREFIX) else channels)
    if channels != takes:
        raise UsageError(
            f"backbone {name} takes images of {takes} channels, and these have {channels}; name another: "
            f"package.module:factory of your own, or {UNTRAINED}, with finetune"
        )
