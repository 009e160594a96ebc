"""Frozen features on the disk: made once, and mapped into memory by all processes that train on them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from robustdml_ops.recipes.cache import cache_folder, write_whole
from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import RetrievalData, Split
from robustdml_ops.recipes.networks.models import apply_in_batches
from robustdml_ops.recipes.networks.preparation import Origin, load_origin
from robustdml_ops.recipes.progress import OnProgress, silent

_ROWS_HASHED_AT_ONCE = 4096


@dataclass(frozen=True)
class StoredSplit:
    """Samples whose features are in a file.

    Attributes
    ----------
    path : Path
        ``.npy``, float32, (N, F).
    labels, class_names
        As in `Split`.
    """

    path: Path
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]

    def open(self) -> Split:
        """Map the features into memory.

        Returns
        -------
        Split
            Which reads from the file what is asked for.
        """
        # A plain array over the mapped file: indexing the subclass costs more at every step. Copy on write, so that
        # PyTorch makes tensors of it without a warning.
        return Split(np.asarray(np.load(self.path, mmap_mode="c")), self.labels, self.class_names)


@dataclass(frozen=True)
class StoredFeatures:
    """Data whose features are in files; small to send to another process.

    Attributes
    ----------
    name : str
        As in `RetrievalData`.
    train, test : StoredSplit
        The two splits.
    """

    name: str
    train: StoredSplit
    test: StoredSplit

    def open(self) -> RetrievalData:
        """Map both splits into memory.

        Returns
        -------
        RetrievalData
            Features.
        """
        return RetrievalData(self.name, self.train.open(), self.test.open())


def store_features(data: RetrievalData, device: torch.device, on_progress: OnProgress = silent) -> StoredFeatures:
    """Put features into the cache folder: those given, or of images those of the backbone that goes with them.

    What is there already is not made again; files go by the data, the network and its weights.

    Parameters
    ----------
    data : RetrievalData
        Images or features.
    device : torch.device
        Where to compute.
    on_progress : callable
        Told of features being made.

    Returns
    -------
    StoredFeatures
        Where they are.

    Raises
    ------
    UsageError
        No backbone goes with the images.
    """
    origin = load_origin(TrainingConfig(), data, device, on_progress)
    stored = (_store(split, origin, device, on_progress) for split in (data.train, data.test))
    return StoredFeatures(data.name, *stored)


def _store(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress) -> StoredSplit:
    path = cache_folder() / "features" / f"{origin.name.replace('/', '-')}-{_key(split, origin)}.npy"
    if not path.exists():
        if split.is_images:
            features = apply_in_batches(origin.backbone, split.inputs, device, on_progress=on_progress)
        else:
            features = split.inputs.astype(np.float32, copy=False)
        write_whole(path, lambda file: np.save(file, features))
    return StoredSplit(path, split.labels, split.class_names)


def _key(split: Split, origin: Origin) -> str:
    digest = hashlib.blake2b(f"{torch.__version__} {origin.backbone}".encode(), digest_size=12)
    for name, tensor in origin.backbone.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().numpy().tobytes())
    digest.update(f"{split.inputs.dtype} {split.inputs.shape}".encode())
    for start in range(0, len(split), _ROWS_HASHED_AT_ONCE):
        digest.update(split.inputs[start : start + _ROWS_HASHED_AT_ONCE].tobytes())
    return digest.hexdigest()
