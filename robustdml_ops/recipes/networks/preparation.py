"""What a run trains on: the data in the form that its network takes, and the features of the untouched backbone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robustdml_ops.recipes.config import UNTRAINED, TrainingConfig
from robustdml_ops.recipes.data import RetrievalData, Split
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.networks.backbones.choice import FEATURES, is_own_code
from robustdml_ops.recipes.networks.models import apply_in_batches, count_features
from robustdml_ops.recipes.networks.origin import Origin, load_origin, needs_trained_backbone
from robustdml_ops.recipes.networks.stored_features import store_split
from robustdml_ops.recipes.progress import OnProgress, silent


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
        train, test = (_features_of(split, origin, device, on_progress) for split in (data.train, data.test))
        return _on_features(RetrievalData(data.name, train, test), origin)

    @cache
    def frozen_features() -> NDArray[np.float32]:
        if origin.name == UNTRAINED:
            raise needs_trained_backbone(data)
        return _features_of(data.train, origin, device, on_progress).inputs.astype(np.float32, copy=False)

    return Prepared(data, origin.backbone, num_features, frozen_features, origin)


def _features_of(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress) -> Split:
    """Apply the backbone to images, or read what it made of them before."""
    # What the user's own code does may change while its name and weights do not.
    if is_own_code(origin.name):
        return replace(split, inputs=apply_in_batches(origin.backbone, split.inputs, device, on_progress=on_progress))
    stored = store_split(split, origin, device, on_progress).open()
    return replace(stored, sample_names=split.sample_names, weights=split.weights)


def _on_features(data: RetrievalData, origin: Origin) -> Prepared:
    features = data.train.inputs.astype(np.float32, copy=False)
    return Prepared(data, nn.Identity(), features.shape[1], lambda: features, origin)
