"""Glyphs: real images with many classes, made in seconds from the typefaces that matplotlib ships.

A class is a Unicode code point, a sample is that character in one typeface; ``docs/data.md`` describes the data.
"""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import PIL
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from robustdml.arrays import Array, Pixels
from robustdml.cache import cache_folder, make_once, write_whole
from robustdml.data.dataset import RetrievalData, Split, take_classes
from robustdml.plain_files import read_npz


@dataclass(frozen=True)
class Pretraining:
    """Data that a small backbone is pretrained on: characters that the data set does not hold."""

    load: Callable[[], Split]  # Returns grey images of 32×32 pixels and their classes
    key: Callable[[], str]  # Returns a text that changes where these images do


@dataclass(frozen=True)
class NamedData:
    """A data set that `robustdml.data.load_data` knows by its name."""

    kind: str  # What its samples are, in a word or two: `letters`, `text`, …
    # Makes or reads it. Raises `UsageError` with the sentence that says what to install where something is missing.
    load: Callable[[], RetrievalData]
    backbone: str = ""  # The one that its images go through where none is chosen; empty for features
    pretraining: Pretraining | None = None  # Data for that backbone, where it is a small one trained here


SIDE = 32

# Code point of a class, and its drawings.
Class = tuple[int, list[Pixels]]


def draw(character: str, typeface: ImageFont.FreeTypeFont) -> Pixels:
    """Draw a character in the middle of a square, white on black."""
    image = Image.new("L", (SIDE, SIDE))
    left, top, right, bottom = typeface.getbbox(character)
    middle = (SIDE - left - right) / 2, (SIDE - top - bottom) / 2
    ImageDraw.Draw(image).text(middle, character, fill=255, font=typeface)
    return np.asarray(image)


def distinct(classes: Iterable[Class]) -> Iterator[Class]:
    """Pass over classes that share a drawing with an earlier one (Latin A, Greek Alpha), or have an empty drawing."""
    seen: set[bytes] = set()
    for code, images in classes:
        drawings = {hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images}
        if seen.isdisjoint(drawings) and all(image.any() for image in images):
            seen |= drawings
            yield code, images


def distort(drawing: Pixels, random: np.random.Generator) -> Pixels:
    """Put a drawing through a small random affine map."""
    angle, shear = np.deg2rad(random.uniform(-10, 10)), random.uniform(-0.15, 0.15)
    scale, shift = random.uniform(0.9, 1.1, size=2), random.uniform(-2, 2, size=2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = rotation @ np.array([[1, shear], [0, 1]]) / scale
    centre = np.full(2, SIDE / 2)
    # From places in the result to places in the drawing.
    affine = tuple(np.column_stack([linear, centre - linear @ (centre + shift)]).ravel())
    image = Image.fromarray(drawing)
    return np.asarray(image.transform((SIDE, SIDE), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR))


POINT_SIZE = 26
RECIPE_VERSION = 1
COPIES = 4
NUM_TRAIN, NUM_TEST = 200, 400
SPLIT_SEED = 0


class _Part(NamedTuple):
    """All classes of one kind: which Unicode categories, and in how many typefaces at least."""

    categories: str
    min_typefaces: int


_PARTS = {"letters": _Part("L", 12), "pretraining": _Part("SNPM", 6)}


def load_glyphs(name: str) -> RetrievalData:
    """Letters, split by class into training and test."""
    letters = _load_part("letters")
    order = np.random.default_rng(SPLIT_SEED).permutation(letters.num_classes)
    half = letters.num_classes // 2
    num_train, start, stop = {
        "glyphs": (NUM_TRAIN, NUM_TRAIN, NUM_TRAIN + NUM_TEST),
        "glyphs-validation": (NUM_TRAIN, NUM_TRAIN + NUM_TEST, NUM_TRAIN + 2 * NUM_TEST),
        "glyphs-large": (half, half, 2 * half),
        "glyphs-large-validation": (half // 2, half // 2, 2 * (half // 2)),
    }[name]
    train, test = (take_classes(letters, np.sort(part)) for part in (order[:num_train], order[start:stop]))
    return RetrievalData(name, train if "large" in name else _distorted_copies(train), test)


@cache
def glyphs_key() -> str:
    """Return what the images depend on: this recipe's version, the font files and the library that draws them."""
    digest = hashlib.sha256(f"{RECIPE_VERSION} {SIDE} {POINT_SIZE} {sorted(_PARTS.items())} {PIL.__version__}".encode())
    for font in _font_files():
        digest.update(font.read_bytes())
    return digest.hexdigest()[:16]


PRETRAINING = Pretraining(lambda: _load_part("pretraining"), glyphs_key)
NAMED = {
    name: NamedData("letters", partial(load_glyphs, name), "glyphs-cnn", PRETRAINING)
    for name in ("glyphs", "glyphs-validation", "glyphs-large", "glyphs-large-validation")
}


def _load_part(part: str) -> Split:
    path = cache_folder() / f"glyphs-{glyphs_key()}.npz"
    make_once(lambda: write_whole(path, lambda file: np.savez_compressed(file, **_draw_all())), path)  # type: ignore[arg-type]
    kinds = [f"{part}_{kind}" for kind in ("images", "labels", "code_points")]
    images, labels, code_points = read_npz(path, kinds).values()
    names = tuple(f"U+{code:04X} {unicodedata.name(chr(code), '?')}" for code in code_points)
    return Split(images[:, None], labels, names)


def _font_files() -> list[Path]:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return sorted(
        path
        for family in ("DejaVu", "STIXGeneral")
        for path in folder.glob(f"{family}*.ttf")
        if "Display" not in path.name
    )


def _draw_all() -> dict[str, Array]:
    files = _font_files()
    coverage = [frozenset(FT2Font(str(path)).get_charmap()) for path in files]
    typefaces = [ImageFont.truetype(str(path), POINT_SIZE) for path in files]

    def drawings(code: int) -> list[Pixels]:
        return [draw(chr(code), face) for face, covered in zip(typefaces, coverage, strict=True) if code in covered]

    count = Counter(code for covered in coverage for code in covered)
    arrays: dict[str, Array] = {}
    for name, part in _PARTS.items():
        codes = sorted(
            code
            for code, number in count.items()
            if number >= part.min_typefaces and unicodedata.category(chr(code))[0] in part.categories
        )
        classes = dict(distinct((code, drawings(code)) for code in codes))
        sizes = [len(images) for images in classes.values()]
        arrays[f"{name}_images"] = np.concatenate([np.stack(images) for images in classes.values()])
        arrays[f"{name}_labels"] = np.repeat(np.arange(len(classes), dtype=np.int64), sizes)
        arrays[f"{name}_code_points"] = np.fromiter(classes, dtype=np.int64)
    return arrays


def _distorted_copies(split: Split) -> Split:
    """Replace each image by `COPIES` of it under small random affine maps, the same at every call."""
    random = np.random.default_rng(RECIPE_VERSION)
    copies = np.empty((len(split), COPIES, 1, SIDE, SIDE), dtype=np.uint8)
    for row, pixels in enumerate(np.asarray(split.inputs)[:, 0]):
        for copy in range(COPIES):
            copies[row, copy, 0] = distort(pixels, random)
    return Split(copies.reshape(-1, 1, SIDE, SIDE), np.repeat(split.labels, COPIES), split.class_names)
