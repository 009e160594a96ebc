"""One icon file, drawn as a small square of pixels on white."""

import io
import os
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from experiments.data.icon_themes import VECTOR

SIDE = 112
# Of a drawing, the side of the picture by which it is compared with others.
THUMBNAIL = 24
# Values from which on a pixel is not seen on white.
PALE = 216


def draw(path: str, resvg: ModuleType) -> NDArray[np.uint8] | str:
    """Draw an icon in the middle of a white square, as large as fits."""
    try:
        if os.path.splitext(path)[1] in VECTOR:
            # No text is set in the fonts of this machine: the drawing is to be the same on every other.
            source: io.BytesIO | str = io.BytesIO(
                resvg.svg_to_bytes(svg_path=path, width=SIDE, dpi=96.0, skip_system_fonts=True)
            )
        else:
            source = path
        with Image.open(source) as image:
            image = image.convert("RGBA")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"{path} ({error})"
    canvas = Image.new("RGBA", (SIDE, SIDE), "white")
    # Colours weighted by their opacity: those of pixels that are not seen do not bleed into the edge.
    fitted = ImageOps.contain(image.convert("RGBa"), (SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGBA")
    canvas.alpha_composite(fitted, ((SIDE - fitted.width) // 2, (SIDE - fitted.height) // 2))
    pixels: NDArray[np.uint8] = np.asarray(canvas.convert("RGB")).transpose(2, 0, 1)
    return pixels


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reduce a drawing to what it is compared by."""
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    small = np.asarray(image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX))
    reduced: NDArray[np.uint8] = small.transpose(2, 0, 1)
    return reduced


def is_blank(small: NDArray[np.uint8]) -> bool:
    """Tell whether nothing of a drawing is seen on white: it is empty, or a pale one for dark panels."""
    return bool(small.min() >= PALE)
