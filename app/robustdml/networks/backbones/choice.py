"""Which backbone a name means, how it is made, and which one goes with settings and data."""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from robustdml.config import UNTRAINED, TrainingConfig
from robustdml.data import RetrievalData
from robustdml.data.image_files import DEFAULT_IMAGE_SIZE, ImageFiles
from robustdml.data.named import NAMED
from robustdml.errors import UsageError, expanded
from robustdml.networks.backbones.photographs import (
    EFFICIENTNET,
    load_efficientnet,
    make_efficientnet,
    require_efficientnet,
)
from robustdml.networks.backbones.programs import is_program, load_program
from robustdml.networks.backbones.timm_models import PREFIX, load_timm, make_timm, timm_image_size
from robustdml.networks.models import SmallCNN
from robustdml.networks.pretraining import load_pretrained_cnn, pretrained
from robustdml.progress import OnProgress, silent

FEATURES = "features"


def default_image_size(name: str) -> int:
    """Side of the images that a backbone is made for."""
    return timm_image_size(name) if name.startswith(PREFIX) else DEFAULT_IMAGE_SIZE


def check_installed(name: str, weights: str) -> None:
    """Refuse a backbone for photographs that is not installed, before any image is decoded."""
    if name in ("", EFFICIENTNET):
        require_efficientnet(weights=not weights)


def is_own_code(name: str) -> bool:
    """Tell whether a name means code of the user's own: ``package.module:factory``, a file of it, or a program."""
    return (":" in name and not name.startswith(PREFIX)) or is_program(name)


def load_backbone(
    name: str,
    channels: int,
    image_size: int,
    weights: Path | None = None,
    augment: bool = True,
    on_progress: OnProgress = silent,
) -> nn.Module:
    """Make a backbone as a run starts with it: trained, but for `UNTRAINED`."""
    _check_channels(name, channels)
    if weights is not None and not weights.is_file():
        raise UsageError(f"backbone weights {weights}: no such file")
    if name == EFFICIENTNET:
        return load_efficientnet(image_size, weights=weights, augment=augment)
    if name.startswith(PREFIX):
        return load_timm(name, weights=weights, augment=augment)
    if weights is not None:
        raise UsageError(f"backbone weights {weights}: {EFFICIENTNET} and {PREFIX}NAME take weights, not {name}")
    return load_pretrained_cnn(name, on_progress) if name in pretrained() else make_backbone(name, channels, image_size)


def make_backbone(name: str, channels: int, image_size: int) -> nn.Module:
    """Make a backbone whose weights come from elsewhere, such as a model file."""
    if name == FEATURES:
        return nn.Identity()
    if name == UNTRAINED or name in pretrained():
        return SmallCNN(channels)
    if name == EFFICIENTNET:
        return make_efficientnet(image_size)
    if name.startswith(PREFIX):
        return make_timm(name)
    if is_program(name):
        return load_program(expanded(name))
    if is_own_code(name):
        return import_backbone(name)
    expected = f"{EFFICIENTNET}, {PREFIX}NAME, package.module:factory, FILE.py:factory, FILE.pt2 or {UNTRAINED}"
    raise UsageError(f"backbone {name!r}: expected {expected}")


def _check_channels(name: str, channels: int) -> None:
    takes = {EFFICIENTNET: 3, **dict.fromkeys(pretrained(), 1)}.get(name, 3 if name.startswith(PREFIX) else channels)
    if channels != takes:
        raise UsageError(
            f"backbone {name} takes images of {takes} channels, and these have {channels}; name another: "
            f"package.module:factory of your own, or {UNTRAINED}, with finetune"
        )


def import_backbone(path: str) -> nn.Module:
    """Make a backbone of the user's own, ``package.module:factory`` or ``FILE.py:factory``, without arguments."""
    module_name, _, factory_name = path.rpartition(":")
    if not module_name or not factory_name:
        raise UsageError(f"backbone {path!r}: expected package.module:factory or FILE.py:factory")
    file = expanded(module_name)
    # What a file imports may lie beside it.
    folder = str(file.absolute().parent) if file.suffix == ".py" else ""
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(file.stem if folder else module_name)
        if folder and Path(str(module.__file__)).resolve() != file.resolve():
            raise ImportError(f"{module.__file__} has the same name; rename the file")
        factory: Callable[[], object] = getattr(module, factory_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"backbone {path!r}: {error}") from error
    finally:
        sys.path.remove(folder)
    expected = "expected a function without arguments that returns a torch.nn.Module"
    if isinstance(factory, nn.Module) or not callable(factory):
        raise UsageError(f"backbone {path!r}: it is a {type(factory).__name__}; {expected}")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise UsageError(f"backbone {path!r}: {error}; {expected}: give them defaults") from error
    except ValueError:
        pass  # Some functions written in C do not tell their arguments.
    backbone = factory()
    if not isinstance(backbone, nn.Module):
        what = f"the class {backbone.__name__}" if isinstance(backbone, type) else type(backbone).__name__
        raise UsageError(f"backbone {path!r}: the factory returned {what}; {expected}")
    return backbone


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
    # A folder of photographs may have the name of a data set.
    known = None if isinstance(data.train.inputs, ImageFiles) else NAMED.get(data.name)
    name = config.backbone or (EFFICIENTNET if known is None else known.backbone)
    if name == UNTRAINED and not config.finetune:
        raise needs_trained_backbone(data)
    channels, _, image_size = data.train.inputs.shape[1:]
    backbone = load_backbone(name, channels, image_size, weights_of(config), config.augment, on_progress)
    return Origin(name, backbone.to(device), data.train.inputs.shape[1:])


def weights_of(config: TrainingConfig) -> Path | None:
    """The file of weights that was named."""
    return expanded(config.backbone_weights) if config.backbone_weights else None


def needs_trained_backbone(data: RetrievalData) -> UsageError:
    """Say that a backbone which is untrained makes no features of use."""
    return UsageError(
        f"{data.name}: the built-in backbone is not trained for these images, and features of an untrained one are of "
        f"no use; give a trained one (backbone {EFFICIENTNET}, timm:NAME or package.module:factory), or finetune "
        "with a method and a noise that need no frozen features"
    )
