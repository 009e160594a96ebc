"""A character drawn in a typeface, and classes of such drawings that can be told apart."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SIDE = 32

# Code point of a class, and its drawings.
Class = tuple[int, list[NDArray[np.uint8]]]


def draw(character: str, typeface: ImageFont.FreeTypeFont) -> NDArray[np.uint8]:
    """Draw a character in the middle of a square, white on black."""
    image = Image.new("L", (SIDE, SIDE))
    left, top, right, bottom = typeface.getbbox(character)
    ImageDraw.Draw(image).text(
        ((SIDE - left - right) / 2, (SIDE - top - bottom) / 2), character, fill=255, font=typeface
    )
    return np.asarray(image)


def distinct(classes: Iterable[Class]) -> Iterator[Class]:
    """Pass over classes that share a drawing with an earlier one (Latin A, Greek Alpha), or have an empty drawing."""
    seen: set[bytes] = set()
    for code, images in classes:
        drawings = {blake2b(image.tobytes(), digest_size=16).digest() for image in images}
        if seen.isdisjoint(drawings) and all(image.any() for image in images):
            seen |= drawings
            yield code, images


def distort(drawing: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Put a drawing through a small random affine map."""
    image, coefficients = Image.fromarray(drawing), tuple(_affine(random))
    return np.asarray(image.transform((SIDE, SIDE), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR))


def _affine(random: np.random.Generator) -> NDArray[np.float64]:
    """Six coefficients, from places in the result to places in the drawing."""
    angle, shear = np.deg2rad(random.uniform(-10, 10)), random.uniform(-0.15, 0.15)
    scale, shift = random.uniform(0.9, 1.1, size=2), random.uniform(-2, 2, size=2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = rotation @ np.array([[1, shear], [0, 1]]) / scale
    centre = np.full(2, SIDE / 2)
    return np.column_stack([linear, centre - linear @ (centre + shift)]).ravel()
