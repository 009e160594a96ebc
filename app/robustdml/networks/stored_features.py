"""Features and embeddings: made once, written as they come, and mapped into memory by all that need them."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import DTypeLike
from torch import nn

from robustdml.arrays import Floats, Singles, blocks
from robustdml.cache import cache_folder, in_full, make_once, read_array
from robustdml.data import Split
from robustdml.data.image_files import ImageFiles, Inputs, fingerprint
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import Origin
from robustdml.networks.models import batch_size_for, outputs_in_batches
from robustdml.progress import OnProgress, silent

RECIPE_VERSION = 2
# Makes batches of rows, (B, F), from a row on.
RowsFrom: TypeAlias = Callable[[int], Iterator[Singles]]
# Samples that are read at a time where no network sets the size of batches.
BLOCK = 4096


def map_features(path: Path) -> Floats:
    """Map what `store_rows` wrote into memory."""
    # A plain array over the mapped file: indexing the subclass costs more at every step. Copy on write, so that
    # PyTorch makes tensors of it without a warning.
    return np.asarray(read_array(path, "c"))


def store_split(split: Split, origin: Origin, device: torch.device, on_progress: OnProgress = silent) -> Path:
    """Write the features of a split, (N, F), into the cache folder under a hash of all that they depend on.

    Those of files are float16.
    """
    size = batch_size_for(split.inputs.shape, device) if split.is_images else BLOCK
    dtype = np.float16 if isinstance(split.inputs, ImageFiles) else np.float32

    def rows(first: int) -> Iterator[Singles]:
        if split.is_images:
            batches = outputs_in_batches(origin.backbone, split.inputs, device, size, on_progress, first)
        else:
            cut = blocks(len(split), BLOCK, first)
            batches = (np.asarray(split.inputs[rows], np.float32) for rows in cut)
        for features in batches:
            largest = np.abs(features).max(1)
            if dtype == np.float16 and ((largest > 65504) | ((largest > 0) & (largest < 2**-14))).any():
                raise UsageError(
                    f"backbone {origin.name}: the largest values of its rows are {largest.min():.3g} to "
                    f"{largest.max():.3g}, and 16 bits hold 6.1e-5 to 65504; scale them by a backbone of your own "
                    "around it"
                )
            yield features

    path = stored_as(origin.name, split.inputs, origin.backbone, device)
    store_rows(path, len(split), dtype, size, rows)
    return path


def stored_as(name: str, inputs: Inputs, network: nn.Module, device: torch.device) -> Path:
    """File in the cache folder for the outputs of a network, named by a hash of all that they depend on."""
    return cache_folder() / "features" / f"{name.replace('/', '-')}-{_key(inputs, network, device)}.npy"


def store_rows(path: Path, count: int, dtype: DTypeLike, size: int, rows: RowsFrom) -> None:
    """Write an array of `count` rows, batch after batch of `size`, unless it is there; ``rows(first)`` makes batches.

    An interrupted call leaves what it has made to the next one.
    """

    def make() -> None:
        with in_full(path) as file:
            _go_on(file, count, np.dtype(dtype), size, rows)

    make_once(make, path)


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


def _key(inputs: Inputs, network: nn.Module, device: torch.device) -> str:
    depends_on = f"{RECIPE_VERSION} {torch.__version__} {device.type} {network}"
    digest = hashlib.blake2b(depends_on.encode(), digest_size=12)
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # Bytes, because NumPy has no bfloat16.
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    digest.update(f"{inputs.dtype} {inputs.shape}".encode())
    if isinstance(inputs, ImageFiles):
        digest.update(fingerprint(inputs.files).encode())
    else:
        for rows in blocks(len(inputs), BLOCK):
            digest.update(np.ascontiguousarray(inputs[rows]).data)
    return digest.hexdigest()
