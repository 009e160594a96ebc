"""Where the features come from that the embedding layer takes: the backbone that goes with settings and data."""

from dataclasses import dataclass

import torch
from torch import nn

from robustdml.config import UNTRAINED, TrainingConfig
from robustdml.data import RetrievalData
from robustdml.data.named import NAMED
from robustdml.errors import UsageError, expanded
from robustdml.networks.backbones import efficientnet
from robustdml.networks.backbones.choice import FEATURES, load_backbone
from robustdml.progress import OnProgress, silent


@dataclass(frozen=True)
class Origin:
    """Where the features come from that the embedding layer takes."""

    name: str  # Of the backbone, as `robustdml.networks.backbones.choice` knows it
    # From the data as they were given to features; `torch.nn.Identity` where they were features already.
    backbone: nn.Module
    input_shape: tuple[int, ...]  # Of one sample as it was given: (channels, S, S) or (F,)


def load_origin(
    config: TrainingConfig, data: RetrievalData, device: torch.device, on_progress: OnProgress = silent
) -> Origin:
    """Make the backbone that goes with settings and data."""
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
    """Say that a backbone which is untrained makes no features of use."""
    return UsageError(
        f"{data.name}: the built-in backbone is not trained for these images, and features of an untrained one are of "
        f"no use; give a trained one (backbone {efficientnet.NAME}, timm:NAME or package.module:factory), or finetune "
        "with a method and a noise that need no frozen features"
    )


def _backbone_name(config: TrainingConfig, data: RetrievalData) -> str:
    if config.backbone:
        return config.backbone
    return NAMED[data.name].backbone if data.name in NAMED else efficientnet.NAME
