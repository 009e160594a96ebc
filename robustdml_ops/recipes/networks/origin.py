"""Where the features come from that the embedding layer takes: the backbone that goes with settings and data."""

from dataclasses import dataclass

import torch
from torch import nn

from robustdml_ops.recipes.config import UNTRAINED, TrainingConfig
from robustdml_ops.recipes.data import RetrievalData
from robustdml_ops.recipes.data.named import NAMED
from robustdml_ops.recipes.errors import UsageError, expanded
from robustdml_ops.recipes.networks.backbones import efficientnet
from robustdml_ops.recipes.networks.backbones.choice import FEATURES, load_backbone
from robustdml_ops.recipes.progress import OnProgress, silent


@dataclass(frozen=True)
class Origin:
    """Where the features come from that the embedding layer takes.

    Attributes
    ----------
    name : str
        Of the backbone, as `robustdml_ops.recipes.networks.backbones.choice` knows it.
    backbone : Module
        From the data as they were given to features; `torch.nn.Identity` where they were features already.
    input_shape : tuple of int
        Of one sample as it was given: (channels, S, S) or (F,).
    """

    name: str
    backbone: nn.Module
    input_shape: tuple[int, ...]


def load_origin(
    config: TrainingConfig, data: RetrievalData, device: torch.device, on_progress: OnProgress = silent
) -> Origin:
    """Make the backbone that goes with settings and data.

    Parameters
    ----------
    config : TrainingConfig
        Which backbone, and whether it trains.
    data : RetrievalData
        Images or features.
    device : torch.device
        Where features are computed.
    on_progress : callable
        Told of pretraining.

    Returns
    -------
    Origin
        With the backbone on `device`, as it is before any training of the run.

    Raises
    ------
    UsageError
        Settings that do not fit the data.
    """
    if not data.train.is_images:
        if config.finetune or config.backbone or config.backbone_weights:
            raise UsageError(f"{data.name} holds features: there is no backbone to choose or to train")
        return Origin(FEATURES, nn.Identity(), data.train.inputs.shape[1:])
    name = _backbone_name(config, data)
    if name == UNTRAINED and not config.finetune:
        raise needs_trained_backbone(data)
    channels, _, image_size = data.train.inputs.shape[1:]
    weights = expanded(config.backbone_weights) if config.backbone_weights else None
    backbone = load_backbone(
        name, channels, image_size, weights=weights, augment=config.augment, on_progress=on_progress
    ).to(device)
    return Origin(name, backbone, data.train.inputs.shape[1:])


def needs_trained_backbone(data: RetrievalData) -> UsageError:
    """Say that a backbone which is untrained makes no features of use.

    Parameters
    ----------
    data : RetrievalData
        What was to be trained on.

    Returns
    -------
    UsageError
        With the ways out.
    """
    return UsageError(
        f"{data.name}: the built-in backbone is not trained for these images, and features of an untrained one are of "
        f"no use; give a trained one (backbone {efficientnet.NAME}, timm:NAME or package.module:factory), or finetune "
        "with a method and a noise that need no frozen features"
    )


def _backbone_name(config: TrainingConfig, data: RetrievalData) -> str:
    if config.backbone:
        return config.backbone
    return NAMED[data.name].backbone if data.name in NAMED else efficientnet.NAME
