"""What a run trains on: the data as its network takes them, and features of the untouched backbone, made once."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robustdml.cache import cache_folder, make_once, read_array, write_checked
from robustdml.config import UNTRAINED, TrainingConfig
from robustdml.data import RetrievalData, Split
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import FEATURES, Origin, is_own_code, load_origin, needs_trained_backbone
from robustdml.networks.models import apply_in_batches, count_features, outputs_in_batches
from robustdml.progress import OnProgress, silent

RECIPE_VERSION = 1
# Samples that are read at a time where no network sets the size of batches.
BLOCK = 4096


@dataclass(frozen=True)
class Prepared:
    """Data, and the backbone that goes with it."""

    data: RetrievalData  # Inputs of `backbone`
    # What trains below the embedding layer; `torch.nn.Identity` where the inputs are frozen features already.
    backbone: nn.Module
    num_features: int  # Size of the backbone's features, F
    # Returns the features of the training split from the untouched backbone, (N, F): to be called first before the
    # backbone trains. Raises UsageError where the backbone is an untrained one.
    frozen_features: Callable[[], NDArray[np.float32]]
    origin: Origin  # What made the inputs of `backbone`, or the backbone itself where it trains


def resolve_device(name: str) -> torch.device:
    """Choose a device by name; ``auto`` is the GPU where there is one."""
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
    """Bring data into the form that a run trains on."""
    origin = load_origin(config, data, device, on_progress)
    if origin.name == FEATURES:
        return _on_features(data, origin)
    num_features = count_features(origin.backbone, data.train.inputs[:1], device)
    if not config.finetune:
        train, test = (_features_of(split, origin, device, on_progress) for split in (data.train, data.test))
        return _on_features(replace(data, train=train, test=test), origin)

    @cache
    def frozen_features() -> NDArray[np.float32]:
        if origin.name == UNTRAINED:
            raise needs_trained_backbone(data)
        return _features_of(data.train, origin, device, on_progress).inputs.astype(np.float32, copy=False)

    return Prepared(data, origin.backbone, num_features, frozen_features, origin)


def untouched_features(
    config: TrainingConfig, data: RetrievalData, device: torch.device, on_progress: OnProgress = silent
) -> NDArray[np.float32]:
    """Features of the training split from the untouched backbone, (N, F); a caller's random numbers are left alone."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        return prepare(config, data, device, on_progress).frozen_features()


def _features_of(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress) -> Split:
    """Apply the backbone to images, or read what it made of them before."""
    # What the user's own code does may change while its name and weights do not.
    if is_own_code(origin.name):
        return replace(split, inputs=apply_in_batches(origin.backbone, split.inputs, device, on_progress=on_progress))
    return replace(split, inputs=map_features(store_split(split, origin, device, on_progress)))


def _on_features(data: RetrievalData, origin: Origin) -> Prepared:
    features = data.train.inputs.astype(np.float32, copy=False)
    return Prepared(data, nn.Identity(), features.shape[1], lambda: features, origin)


def map_features(path: Path) -> NDArray[np.float32]:
    """Map features that `store_split` wrote into memory."""
    # A plain array over the mapped file: indexing the subclass costs more at every step. Copy on write, so that
    # PyTorch makes tensors of it without a warning.
    return np.asarray(read_array(path, "c"))


def store_split(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress = silent) -> Path:
    """Write the features of a split, float32 (N, F), into the cache folder under a hash of all that they depend on."""
    path = cache_folder() / "features" / f"{origin.name.replace('/', '-')}-{_key(split, origin, device)}.npy"

    def make() -> None:
        if split.is_images:
            batches = outputs_in_batches(origin.backbone, split.inputs, device, on_progress=on_progress)
        else:
            batches = (block.astype(np.float32, copy=False) for block in _blocks(split))
        write_checked(path, lambda file: _write(file, batches, len(split)))

    make_once(make, path)
    return path


def _write(file: BinaryIO, batches: Iterator[NDArray[np.float32]], count: int) -> None:
    """Write an array of `count` rows without holding all of it."""
    for number, features in enumerate(batches):
        if number == 0:
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, features.shape[1])}
            np.lib.format.write_array_header_1_0(file, header)
        file.write(features.tobytes())


def _blocks(split: Split) -> Iterator[NDArray[np.generic]]:
    return (split.inputs[start : start + BLOCK] for start in range(0, len(split), BLOCK))


def _key(split: Split, origin: Origin, device: torch.device) -> str:
    depends_on = f"{RECIPE_VERSION} {torch.__version__} {device.type} {origin.backbone}"
    digest = hashlib.blake2b(depends_on.encode(), digest_size=12)
    for name, tensor in origin.backbone.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # Bytes, because NumPy has no bfloat16.
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(f"{split.inputs.dtype} {split.inputs.shape}".encode())
    for block in _blocks(split):
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
