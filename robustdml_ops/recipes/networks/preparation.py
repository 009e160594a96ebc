"""What a run trains on: the data in the form that its network takes, and the features of the untouched backbone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import RetrievalData
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.networks.models import SmallCNN, apply_in_batches, count_features, import_backbone
from robustdml_ops.recipes.networks.pretraining import load_pretrained_cnn
from robustdml_ops.recipes.progress import OnProgress, silent

UNTRAINED = "untrained"


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
    """

    data: RetrievalData
    backbone: nn.Module
    num_features: int
    frozen_features: Callable[[], NDArray[np.float32]]


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
    if not data.train.is_images:
        if config.finetune or config.backbone:
            raise UsageError(f"{data.name} holds features: there is no backbone to choose or to train")
        return _on_features(data)
    trained = _trained_backbone(config, data, on_progress)
    if trained is None and not config.finetune:
        raise _needs_trained_backbone(data)
    backbone = (SmallCNN(data.train.inputs.shape[1]) if trained is None else trained).to(device)
    if not config.finetune:
        on_progress("features", 0, 0)
        return _on_features(extract_features(backbone, data, device))

    @cache
    def frozen_features() -> NDArray[np.float32]:
        if trained is None:
            raise _needs_trained_backbone(data)
        on_progress("features", 0, 0)
        return apply_in_batches(backbone, data.train.inputs, device)

    return Prepared(data, backbone, count_features(backbone, data.train.inputs[:1], device), frozen_features)


def extract_features(backbone: nn.Module, data: RetrievalData, device: torch.device) -> RetrievalData:
    """Replace images by their features.

    Parameters
    ----------
    backbone : Module
        On `device`; used in eval mode.
    data : RetrievalData
        Images.
    device : torch.device
        Where to compute.

    Returns
    -------
    RetrievalData
        The same samples, float32, (N, F).
    """
    train, test = (
        replace(split, inputs=apply_in_batches(backbone, split.inputs, device)) for split in (data.train, data.test)
    )
    return RetrievalData(data.name, train, test)


def _on_features(data: RetrievalData) -> Prepared:
    features = data.train.inputs.astype(np.float32, copy=False)
    return Prepared(data, nn.Identity(), features.shape[1], lambda: features)


def _trained_backbone(config: TrainingConfig, data: RetrievalData, on_progress: OnProgress) -> nn.Module | None:
    if config.backbone not in ("", UNTRAINED):
        return import_backbone(config.backbone)
    if data.name.startswith("glyphs") and config.backbone != UNTRAINED:
        return load_pretrained_cnn(on_progress)
    return None


def _needs_trained_backbone(data: RetrievalData) -> UsageError:
    return UsageError(
        f"{data.name}: the built-in backbone is not trained for these images, and features of an untrained one are of "
        "no use; give a trained one (backbone package.module:factory), or finetune with a method and a noise that need "
        "no frozen features"
    )
