"""Features of a frozen backbone, kept on disk: the next run on the same images reads them."""

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robustdml_ops.recipes.cache import cache_folder, write_whole
from robustdml_ops.recipes.networks.backbones.choice import is_own_code
from robustdml_ops.recipes.networks.models import apply_in_batches
from robustdml_ops.recipes.progress import OnProgress, silent

RECIPE_VERSION = 1
# Images that are hashed at a time.
BLOCK = 1024


def features_of(
    name: str,
    backbone: nn.Module,
    images: NDArray[np.generic],
    device: torch.device,
    on_progress: OnProgress = silent,
) -> NDArray[np.float32]:
    """Apply a backbone to images, or read what it made of them before.

    Parameters
    ----------
    name : str
        Of the backbone, as `robustdml_ops.recipes.networks.backbones.choice` knows it.
    backbone : Module
        On `device`; used in eval mode.
    images : ndarray
        uint8, (N, channels, S, S).
    device : torch.device
        Where to compute.
    on_progress : callable
        Told of the images done; of nothing where the features are read.

    Returns
    -------
    ndarray
        float32, (N, F); memory-mapped where they were read.

    Notes
    -----
    Features are kept where they take less room than the images do. Those of the user's own code are not: what it does
    may change while its name and weights do not. The name of the file holds a hash of all that the features depend on:
    the pixels, the backbone's layers and weights, the device and PyTorch's version.
    """
    if is_own_code(name):
        return apply_in_batches(backbone, images, device, on_progress=on_progress)
    path = cache_folder() / f"features-{_key(name, backbone, images, device)}.npy"
    if path.exists():
        return _read(path)
    features = apply_in_batches(backbone, images, device, on_progress=on_progress)
    if features.nbytes < images.nbytes:

        def write(file: BinaryIO) -> None:
            np.save(file, features)

        write_whole(path, write)
    return features


def _read(path: Path) -> NDArray[np.float32]:
    # Copy on write: what takes arrays that can be written takes these, and the file stays as it is.
    features: NDArray[np.float32] = np.load(path, mmap_mode="c")
    return features


def _key(name: str, backbone: nn.Module, images: NDArray[np.generic], device: torch.device) -> str:
    digest = hashlib.sha256(
        f"{RECIPE_VERSION} {name} {backbone} {device.type} {torch.__version__} {images.dtype} {images.shape}".encode()
    )
    for key, value in backbone.state_dict().items():
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().numpy().tobytes())
    for start in range(0, len(images), BLOCK):
        digest.update(images[start : start + BLOCK].tobytes())
    return digest.hexdigest()[:16]
