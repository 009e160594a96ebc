"""Features of frozen backbones on the disk: made once, and mapped into memory by all that train on them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from robustdml.cache import cache_folder, make_once, read_array, write_whole
from robustdml.data import RetrievalData, Split
from robustdml.networks.backbones.choice import Origin
from robustdml.networks.models import outputs_in_batches
from robustdml.progress import OnProgress, silent

RECIPE_VERSION = 1
# Samples that are read at a time where no network sets the size of batches.
BLOCK = 4096


@dataclass(frozen=True)
class StoredSplit:
    """Samples whose features are in a file."""

    path: Path  # `.npy`, float32, (N, F)
    labels: NDArray[np.int64]  # As in `Split`
    class_names: tuple[str, ...]

    def open(self) -> Split:
        """Map the features into memory."""
        # A plain array over the mapped file: indexing the subclass costs more at every step. Copy on write, so that
        # PyTorch makes tensors of it without a warning.
        return Split(np.asarray(read_array(self.path, "c")), self.labels, self.class_names)


@dataclass(frozen=True)
class StoredFeatures:
    """Data whose features are in files; small to send to another process."""

    name: str  # As in `RetrievalData`
    train: StoredSplit  # The two splits
    test: StoredSplit

    def open(self) -> RetrievalData:
        """Map both splits into memory."""
        return RetrievalData(self.name, self.train.open(), self.test.open())


def store_features(
    data: RetrievalData, origin: Origin, device: torch.device, on_progress: OnProgress = silent
) -> StoredFeatures:
    """Put the features of both splits into the cache folder, as `store_split` does."""
    train, test = (store_split(split, origin, device, on_progress) for split in (data.train, data.test))
    return StoredFeatures(data.name, train, test)


def store_split(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress = silent) -> StoredSplit:
    """Write the features of a split into the cache folder, under a hash of all that they depend on."""
    path = cache_folder() / "features" / f"{origin.name.replace('/', '-')}-{_key(split, origin, device)}.npy"

    def make() -> None:
        if split.is_images:
            batches = outputs_in_batches(origin.backbone, split.inputs, device, on_progress=on_progress)
        else:
            batches = (block.astype(np.float32, copy=False) for block in _blocks(split))
        write_whole(path, lambda file: _write(file, batches, len(split)))

    make_once(make, path)
    return StoredSplit(path, split.labels, split.class_names)


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
