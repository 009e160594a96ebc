"""Images of any kind and size, brought to the small square that a network takes; they may come from strangers."""

import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TextIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from robustdml.arrays import Pixels
from robustdml.errors import UsageError, counted, few, reason_of, say

MODES = {1: "L", 3: "RGB"}
# Kinds by what is in the file, whatever its name says. Pillow knows more, of which some start other programs.
_KINDS = ("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP")
# Images of more pixels are decoded one at a time: of a few bytes that unpack to gigabytes, one is enough.
_LARGE = 2**24
_MISSING = "No such file"
# Millions of pixels that an image may have: a file of a few bytes unpacks to a hundred times its size.
MOST_MEGAPIXELS = 128.0
# Numbers of tags of TIFF, and what they say.
_BITS, _SHOWS, _PLANES = 258, 262, 284
_WHITE_IS_ZERO, _SEPARATE = 0, 2
_one_large = threading.Lock()
_limit = {"megapixels": MOST_MEGAPIXELS}


def limit_pixels(megapixels: float) -> None:
    """Set for all that this process decodes how many millions of pixels an image may have."""
    _limit["megapixels"] = megapixels
    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit, beyond which it warns


def most_megapixels() -> float:
    """How many millions of pixels an image may have."""
    return _limit["megapixels"]


# The file that a thread decodes, for warnings of Pillow, which name none.
_now = threading.local()


@contextmanager
def warnings_with_files() -> Iterator[None]:
    """Print warnings of Pillow with the file that they are about."""
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if (image := getattr(_now, "file", None)) is None:
            usual(message, category, filename, lineno, file, line)
        else:
            told = " ".join(str(message).split())
            say(f"robustdml: {image}: {told}", sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def to_square(image: Image.Image, size: int, channels: int = 3) -> Pixels:
    """Set an image upright, scale it (bicubic) so that its shorter side fits, and crop it to the central square."""
    # Tags of TIFF do not survive the turn.
    upright = _of_eight_bits(ImageOps.exif_transpose(image), image).convert(MODES[channels])
    square = np.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC))
    return np.asarray(square.reshape(size, size, channels).transpose(2, 0, 1))


def as_image(pixels: Pixels) -> Image.Image:
    """Make an image of pixels, (channels, height, width)."""
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def _of_eight_bits(image: Image.Image, source: Image.Image) -> Image.Image:
    """On white where it is transparent, and with 8 bits a channel; Pillow would drop the one, and clip the others."""
    tags = getattr(source, "tag_v2", {})
    if tags.get(_PLANES) == _SEPARATE and max(tags.get(_BITS, (8,))) > 8:
        raise ValueError("its channels of 16 bits lie one behind the other, which is not read; save it with 8 bits")
    if image.mode.startswith("I;16") or (image.mode == "I" and source.format == "PPM"):
        deep = np.asarray(image)
        if tags.get(_SHOWS) == _WHITE_IS_ZERO:
            return Image.fromarray(255 - (deep >> 8).astype(np.uint8))
        # Cameras and scanners of 12 bits write their numbers into 16.
        return Image.fromarray((deep >> (4 if deep.max(initial=0) < 2**12 else 8)).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, whose range is not known; save it with 8 or 16")
    if not image.has_transparency_data:
        return image
    opaque = Image.new("RGBA", image.size, "white")
    opaque.alpha_composite(image.convert("RGBA"))
    return opaque


def decode(file: Path, size: int, channels: int = 3) -> Pixels | str:
    """Read an image as `to_square` has it."""
    _now.file = file
    try:
        if not file.is_file():
            return f"{file} ({'not a file' if file.exists() else _why_missing(str(file))})"
        with (
            Image.open(file, formats=kinds()) as image,
            _one_large if image.width * image.height > _LARGE else nullcontext(),
        ):
            if image.width * image.height > most_megapixels() * 1e6:
                raise Image.DecompressionBombError
            # JPEG files unpack faster at a half, a quarter or an eighth, at least twice as large as needed.
            image.draft(None, (2 * size, 2 * size))
            return to_square(image, size, channels)
    except UnidentifiedImageError:  # Its own words repeat the path.
        return f"{file} ({'cannot identify image file' if file.stat().st_size else 'empty, 0 bytes'})"
    except Image.DecompressionBombError:
        return f"{file} (more than {most_megapixels():g} million pixels; --max-megapixels takes larger ones)"
    except Exception as error:  # A damaged image makes Pillow raise nearly anything, a struct.error for one.
        return f"{file} ({reason_of(error)})"
    finally:
        _now.file = None


def _why_missing(file: str) -> str:
    return f"{_MISSING}; a backslash separates no folders here" if "\\" in file and os.sep == "/" else _MISSING


def read_ahead(
    files: Sequence[Path], batches: Iterable[Iterable[int]], size: int, channels: int = 3
) -> Iterator[list[Pixels | str]]:
    """Decode the files of each batch in threads, a batch ahead of the caller."""
    with ThreadPoolExecutor() as pool:
        begun: deque[list[Future[Pixels | str]]] = deque()
        for rows in batches:
            begun.append([pool.submit(decode, files[row], size, channels) for row in rows])
            if len(begun) > 1:
                yield [one.result() for one in begun.popleft()]
        for batch in begun:
            yield [one.result() for one in batch]


@cache
def kinds() -> tuple[str, ...]:
    """The kinds of images that this Pillow reads and that are read here."""
    Image.init()
    return tuple(kind for kind in _KINDS if kind in Image.OPEN)


def check_left_out(count: int, rows: Sequence[str], broken: Sequence[str], skip_broken: bool) -> None:
    """Refuse rows of a list that lack something, and broken ones of `count` images; of all, also where they may go."""
    way_out = "or remove them, or skip broken ones (--skip-broken)"
    if rows and not skip_broken:
        raise UsageError(f"{counted(len(rows), 'row')} without path or label; fill {way_out}: {few(rows)}")
    if broken and not skip_broken:
        hint = " (paths in a list are relative to its folder)" if any(_MISSING in one for one in broken) else ""
        raise UsageError(f"{counted(len(broken), 'image')} cannot be read; repair {way_out}{hint}: {few(broken)}")
    if len(broken) == count:
        raise UsageError(f"no image of {count:,} can be read: {few(broken)}")
