"""Images of any kind and size, brought to the small square that a network takes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
MAX_NAMED = 10
MODES = {1: "L", 3: "RGB"}


def image_files(folder: Path) -> list[Path]:
    """List the images of a folder, at any depth.

    Parameters
    ----------
    folder : Path
        The folder; hidden files and folders below it are passed over.

    Returns
    -------
    list of Path
        Files that are images by their names, sorted.
    """
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def to_square(image: Image.Image, size: int, channels: int = 3) -> NDArray[np.uint8]:
    """Set an image upright, scale it (bicubic) so that its shorter side fits, and crop it to the central square.

    Parameters
    ----------
    image : Image
        Of any mode.
    size : int
        Side of the square in pixels.
    channels : int
        3 for colour, 1 for grey.

    Returns
    -------
    ndarray
        uint8, (channels, size, size).
    """
    upright = ImageOps.exif_transpose(image).convert(MODES[channels])
    square = np.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC))
    pixels: NDArray[np.uint8] = square.reshape(size, size, channels).transpose(2, 0, 1)
    return pixels


def decode(file: Path, size: int, channels: int = 3) -> NDArray[np.uint8] | str:
    """Read an image as `to_square` has it.

    Parameters
    ----------
    file : Path
        The image.
    size, channels
        As in `to_square`.

    Returns
    -------
    ndarray or str
        Pixels, or the file with the reason why it cannot be read.
    """
    try:
        with Image.open(file) as image:
            return to_square(image, size, channels)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"{file} ({error})"


def few(names: Sequence[str]) -> str:
    """Name the first few of what may be many.

    Parameters
    ----------
    names : sequence of str
        All of them.

    Returns
    -------
    str
        At most ten, and how many more there are.
    """
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return "; ".join(names[:MAX_NAMED]) + more
