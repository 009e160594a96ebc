"""What a run trains on: the data in the form that its network takes, and the features of the untouched backbone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import RetrievalData
from robustdml_ops.recipes.data.named import NAMED
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.networks.backbones import efficientnet
from robustdml_ops.recipes.networks.backbones.choice import FEATURES, UNTRAINED, load_backbone
from robustdml_ops.recipes.networks.kept_features import features_of
from robustdml_ops.recipes.networks.models import count_features
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


@dataclass(frozen=True)
class Prepared:
    """Data, and the backbone that goes with it.

    Attributes
    ----------
    data : RetrievalData
        Inputs of `backbone`.
    backbone : Module
        What trains below the embedding layer; `torch.nn.Identity` where the inputs are frozen features already.
    num_features : int
        Size of the backbone's features, F.
    frozen_features : callable
        Returns the features of the training split from the untouched backbone, (N, F): to be called first before the
        backbone trains. Raises UsageError where the backbone is an untrained one.
    origin : Origin
        What made the inputs of `backbone`, or the backbone itself where it trains.
    """

    data: RetrievalData
    backbone: nn.Module
    num_features: int
    frozen_features: Callable[[], NDArray[np.float32]]
    origin: Origin


def resolve_device(name: str) -> torch.device:
    """Choose a device by name; ``auto`` is the GPU where there is one.

    Parameters
    ----------
    name : str
        ``auto``, or what `torch.device` takes.

    Returns
    -------
    torch.device
        A device that works.

    Raises
    ------
    UsageError
        No such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def prepare(
    config: TrainingConfig, data: RetrievalData, device: torch.device, on_progress: OnProgress = silent
) -> Prepared:
    """Bring data into the form that a run trains on.

    Parameters
    ----------
    config : TrainingConfig
        Which backbone, and whether it trains.
    data : RetrievalData
        Images or features.
    device : torch.device
        Where features are computed.
    on_progress : callable
        Told of pretraining and of features being made.

    Returns
    -------
    Prepared
        With the backbone on `device`.

    Raises
    ------
    UsageError
        Settings that do not fit the data.
    """
    origin = load_origin(config, data, device, on_progress)
    if origin.name == FEATURES:
        return _on_features(data, origin)
    num_features = count_features(origin.backbone, data.train.inputs[:1], device)
    if not config.finetune:
        return _on_features(extract_features(origin.name, origin.backbone, data, device, on_progress), origin)

    @cache
    def frozen_features() -> NDArray[np.float32]:
        if origin.name == UNTRAINED:
            raise _needs_trained_backbone(data)
        return features_of(origin.name, origin.backbone, data.train.inputs, device, on_progress)

    return Prepared(data, origin.backbone, num_features, frozen_features, origin)


def load_origin(
    config: TrainingConfig, data: RetrievalData, device: torch.device, on_progress: OnProgress = silent
) -> Origin:
    """Make the backbone that goes with settings and data.

    Parameters
    ----------
    config, data, device, on_progress
        As in `prepare`.

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
        raise _needs_trained_backbone(data)
    channels, _, image_size = data.train.inputs.shape[1:]
    weights = Path(config.backbone_weights).expanduser() if config.backbone_weights else None
    backbone = load_backbone(
        name, channels, image_size, weights=weights, augment=config.augment, on_progress=on_progress
    ).to(device)
    return Origin(name, backbone, data.train.inputs.shape[1:])


def extract_features(
    name: str, backbone: nn.Module, data: RetrievalData, device: torch.device, on_progress: OnProgress = silent
) -> RetrievalData:
    """Replace images by their features, which `features_of` keeps for the next time.

    Parameters
    ----------
    name : str
        Of the backbone.
    backbone : Module
        On `device`; used in eval mode.
    data : RetrievalData
        Images.
    device : torch.device
        Where to compute.
    on_progress : callable
        Told of the images done, those of the training split first.

    Returns
    -------
    RetrievalData
        The same samples, float32, (N, F).
    """
    train, test = (
        replace(split, inputs=features_of(name, backbone, split.inputs, device, on_progress))
        for split in (data.train, data.test)
    )
    return RetrievalData(data.name, train, test)


def _on_features(data: RetrievalData, origin: Origin) -> Prepared:
    features = data.train.inputs.astype(np.float32, copy=False)
    return Prepared(data, nn.Identity(), features.shape[1], lambda: features, origin)


def _backbone_name(config: TrainingConfig, data: RetrievalData) -> str:
    if config.backbone:
        return config.backbone
    return NAMED[data.name].backbone if data.name in NAMED else efficientnet.NAME


def _needs_trained_backbone(data: RetrievalData) -> UsageError:
    return UsageError(
        f"{data.name}: the built-in backbone is not trained for these images, and features of an untrained one are of "
        f"no use; give a trained one (backbone {efficientnet.NAME}, timm:NAME or package.module:factory), or finetune "
        "with a method and a noise that need no frozen features"
    )
