"""What a run trains on: the data as its network takes them, and features of the untouched backbone, made once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import nn

from robustdml.arrays import Floats
from robustdml.config import UNTRAINED, TrainingConfig
from robustdml.data import RetrievalData, Split
from robustdml.data.image_files import ImageFiles
from robustdml.data.images import MODES
from robustdml.data.readings import Reading
from robustdml.errors import UsageError, reason_of
from robustdml.networks.backbones.choice import (
    FEATURES,
    Origin,
    is_own_code,
    load_backbone,
    load_origin,
    needs_trained_backbone,
    weights_of,
)
from robustdml.networks.backbones.photographs import EFFICIENTNET
from robustdml.networks.models import apply_in_batches, count_features
from robustdml.networks.stored_features import features_of_files, map_features, reading_of, store_split
from robustdml.progress import OnProgress, silent


@dataclass(frozen=True)
class Prepared:
    """Data, and the backbone that goes with it."""

    data: RetrievalData  # Inputs of `backbone`
    # What trains below the embedding layer; `torch.nn.Identity` where the inputs are frozen features already.
    backbone: nn.Module
    num_features: int  # Size of the backbone's features, F
    # Returns the features of the training split from the untouched backbone, float32 or float16, (N, F): to be called
    # first before the backbone trains. Raises UsageError where the backbone is an untrained one.
    frozen_features: Callable[[], Floats]
    origin: Origin  # What made the inputs of `backbone`, or the backbone itself where it trains


def resolve_device(name: str) -> torch.device:
    """Choose a device by name; ``auto`` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # the device meta holds no numbers
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used: {reason_of(error)}") from error
    return device


def prepare(
    config: TrainingConfig, data: RetrievalData, device: torch.device, on_progress: OnProgress = silent
) -> Prepared:
    """Bring data into the form that a run trains on."""
    origin = load_origin(config, data, device, on_progress)
    if origin.name == FEATURES:
        return _on_features(data, origin)
    sample = np.zeros((1, *data.train.inputs.shape[1:]), np.uint8)
    num_features = count_features(origin.backbone, sample, device)
    if not config.finetune:
        train, test = (_features_of(split, origin, device, on_progress) for split in (data.train, data.test))
        made = replace(data, train=replace(data.train, inputs=train), test=replace(data.test, inputs=test))
        return _on_features(made, origin)

    @cache
    def frozen_features() -> Floats:
        if origin.name == UNTRAINED:
            raise needs_trained_backbone(data)
        return _features_of(data.train, origin, device, on_progress)

    return Prepared(data, origin.backbone, num_features, frozen_features, origin)


def reading_for(
    config: TrainingConfig, image_size: int, device: torch.device, on_progress: OnProgress = silent
) -> Reading:
    """How a run reads photographs: through its backbone, where that does not train."""
    name = config.backbone or EFFICIENTNET
    if image_size < 1 or config.finetune or name == UNTRAINED:
        return Reading(image_size)
    shape = max(MODES), image_size, image_size
    backbone = load_backbone(name, shape[0], image_size, weights_of(config), on_progress=on_progress).to(device)
    count_features(backbone, np.zeros((1, *shape), np.uint8), device)
    return reading_of(name, backbone, shape, device)


def _features_of(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress) -> Floats:
    """Apply the backbone to images, or read their cached features."""
    if isinstance(split.inputs, ImageFiles):
        return features_of_files(split.inputs, origin, device, on_progress)
    # What the user's own code does may change while its name and weights do not.
    if is_own_code(origin.name):
        return apply_in_batches(origin.backbone, split.inputs, device, on_progress=on_progress)
    return map_features(store_split(split, origin, device, on_progress))


def _on_features(data: RetrievalData, origin: Origin) -> Prepared:
    features = np.asarray(data.train.inputs)
    if len(features) > 1 and (features[0] == features[-1]).all() and (features == features[0]).all():
        raise UsageError(f"{data.name}: all rows of the features are equal: nothing tells the classes apart")
    return Prepared(data, nn.Identity(), features.shape[1], lambda: features, origin)
