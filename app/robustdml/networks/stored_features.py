"""Features: of arrays in a file of their own, mapped into memory by all that need them, and of images by content."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from numpy.lib import format as npy
from torch import nn

from robustdml.arrays import Floats, Pixels, Singles, blocks
from robustdml.cache import cache_folder, in_full, make_once, read_array
from robustdml.data import Split
from robustdml.data.image_files import ImageFiles
from robustdml.data.readings import Reading, features_of
from robustdml.networks.backbones.choice import Origin, is_own_code
from robustdml.networks.models import apply_in_batches, batch_size_for, outputs_in_batches
from robustdml.progress import OnProgress, silent

RECIPE_VERSION = 2
# Makes batches of rows, (B, F), from a row on.
RowsFrom: TypeAlias = Callable[[int], Iterator[Singles]]
# Samples that are read at a time where no network sets the size of batches.
BLOCK = 4096


def map_features(path: Path) -> Floats:
    """Map what `store_split` wrote into memory."""
    # A plain array over the mapped file: indexing the subclass costs more at every step. Copy on write, so that
    # PyTorch makes tensors of it without a warning.
    return np.asarray(read_array(path, "c"))


def store_split(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress = silent) -> Path:
    """Write the features of a split, float32, (N, F), into the cache folder, named by all that they depend on.

    An interrupted call leaves what it has made to the next one.
    """
    inputs = split.inputs
    size = batch_size_for(inputs.shape, device) if split.is_images else BLOCK
    digest = _digest(origin.backbone, device)
    digest.update(f"{inputs.dtype} {inputs.shape}".encode())
    if isinstance(inputs, ImageFiles):
        digest.update(inputs.contents.tobytes())
    else:
        for block in blocks(len(inputs), BLOCK):
            digest.update(np.ascontiguousarray(inputs[block]).data)
    path = cache_folder() / "features" / f"{origin.name.replace('/', '-')}-{digest.hexdigest()}.npy"

    def rows(first: int) -> Iterator[Singles]:
        if split.is_images and not isinstance(inputs, ImageFiles):
            return outputs_in_batches(origin.backbone, inputs, device, size, on_progress, first)
        there = features_of_files(inputs, origin, device, on_progress) if isinstance(inputs, ImageFiles) else inputs
        return (np.asarray(there[block], np.float32) for block in blocks(len(split), size, first))

    def make() -> None:
        with in_full(path) as file:
            _go_on(file, len(split), np.dtype(np.float32), size, rows)

    make_once(make, path)
    return path


def reading_of(
    name: str, network: nn.Module, shape: tuple[int, ...], device: torch.device, batch_size: int = 0
) -> Reading:
    """How a network reads images of files, (channels, S, S)."""

    def apply(pixels: Pixels) -> Singles:
        return apply_in_batches(network, pixels, device)

    key = _digest(network, device).hexdigest()
    batch = batch_size or batch_size_for((0, *shape), device)
    # What the user's own code does may change while its name and weights do not.
    return Reading(shape[1], shape[0], name, key, apply, batch, lasting=not is_own_code(name))


def features_of_files(
    images: ImageFiles, origin: Origin, device: torch.device, on_progress: OnProgress = silent
) -> Floats:
    """Features of images in files, float16 where that holds them, (N, F)."""
    reading = reading_of(origin.name, origin.backbone, images.shape[1:], device)
    return features_of(images.files, images.contents, reading, on_progress)


def _go_on(file: BinaryIO, count: int, dtype: np.dtype[Any], size: int, rows: RowsFrom) -> None:
    """Write the header and all rows, or the rows that are missing."""
    done = 0
    try:
        npy.read_magic(file)
        (_, width), _, _ = npy.read_array_header_1_0(file)
        begin, row = file.tell(), width * dtype.itemsize
        done = (file.seek(0, 2) - begin) // row
        # Whole batches, so that a resumed call gives the same bits.
        done = count if done >= count else done // size * size
        file.seek(begin + done * row)
    except ValueError:  # Nothing, or half of a header.
        file.seek(0)
    file.truncate()
    for outputs in rows(done):
        if file.tell() == 0:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (count, outputs.shape[1])}
            npy.write_array_header_1_0(file, header)
        file.write(outputs.astype(dtype, copy=False).tobytes())
        file.flush()


def _digest(network: nn.Module, device: torch.device) -> "hashlib.blake2b":
    """Hash of a network, its weights and where it runs."""
    digest = hashlib.blake2b(f"{RECIPE_VERSION} {torch.__version__} {device.type} {network}".encode(), digest_size=12)
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # Bytes, because NumPy has no bfloat16.
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest
