"""Features of a frozen backbone: made once, written as they come, and mapped into memory by all that need them."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from robustdml.cache import cache_folder, in_full, make_once, read_array
from robustdml.data import Split
from robustdml.data.image_files import ImageFiles, fingerprint
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import Origin
from robustdml.networks.models import batch_size_for, outputs_in_batches
from robustdml.progress import OnProgress, silent

RECIPE_VERSION = 1
# Samples that are read at a time where no network sets the size of batches.
BLOCK = 4096


def map_features(path: Path) -> NDArray[np.floating]:
    """Map features that `store_split` wrote into memory."""
    # A plain array over the mapped file: indexing the subclass costs more at every step. Copy on write, so that
    # PyTorch makes tensors of it without a warning.
    return np.asarray(read_array(path, "c"))


def store_split(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress = silent) -> Path:
    """Write the features of a split, (N, F), into the cache folder under a hash of all that they depend on.

    Those of files are float16. An interrupted call leaves what it has made to the next one.
    """
    path = cache_folder() / "features" / f"{origin.name.replace('/', '-')}-{_key(split, origin, device)}.npy"

    def make() -> None:
        with in_full(path) as file:
            _go_on(file, split, origin, device, on_progress)

    make_once(make, path)
    return path


def _go_on(file: BinaryIO, split: Split, origin: Origin, device: torch.device, on_progress: OnProgress) -> None:
    """Write the header and all rows, or the rows that are missing."""
    size, done = batch_size_for(split.inputs.shape, device) if split.is_images else BLOCK, 0
    dtype = np.dtype(np.float16 if isinstance(split.inputs, ImageFiles) else np.float32)
    try:
        npy.read_magic(file)
        (_, width), _, _ = npy.read_array_header_1_0(file)
        begin, row = file.tell(), width * dtype.itemsize
        done = (file.seek(0, 2) - begin) // row
        # Whole batches, so that a resumed call gives the same bits.
        done = len(split) if done >= len(split) else done // size * size
        file.seek(begin + done * row)
    except ValueError:  # Nothing, or half of a header.
        file.seek(0)
    file.truncate()
    if split.is_images:
        batches = outputs_in_batches(origin.backbone, split.inputs, device, size, on_progress, done)
    else:
        batches = (np.asarray(block, np.float32) for block in _blocks(split, done))
    for features in batches:
        if file.tell() == 0:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (len(split), features.shape[1])}
            npy.write_array_header_1_0(file, header)
        largest = np.abs(features).max(1)
        if dtype == np.float16 and ((largest > 65504) | ((largest > 0) & (largest < 2**-14))).any():
            raise UsageError(
                f"backbone {origin.name}: the largest values of its rows are {largest.min():.3g} to "
                f"{largest.max():.3g}, and 16 bits hold 6.1e-5 to 65504; scale them by a backbone of your own around it"
            )
        file.write(features.astype(dtype, copy=False).tobytes())
        file.flush()


def _blocks(split: Split, first: int = 0) -> Iterator[NDArray[np.generic]]:
    return (split.inputs[start : start + BLOCK] for start in range(first, len(split), BLOCK))


def _key(split: Split, origin: Origin, device: torch.device) -> str:
    depends_on = f"{RECIPE_VERSION} {torch.__version__} {device.type} {origin.backbone}"
    digest = hashlib.blake2b(depends_on.encode(), digest_size=12)
    for name, tensor in origin.backbone.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # Bytes, because NumPy has no bfloat16.
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(f"{split.inputs.dtype} {split.inputs.shape}".encode())
    if isinstance(split.inputs, ImageFiles):
        digest.update(fingerprint(split.inputs.files).encode())
    else:
        for block in _blocks(split):
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
