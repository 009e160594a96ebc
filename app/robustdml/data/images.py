"""Images of any kind and size, brought to the small square that a network takes; they may come from strangers."""

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from robustdml.arrays import Pixels
from robustdml.errors import UsageError, counted, few, reason_of

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
MODES = {1: "L", 3: "RGB"}
# Kinds by what is in the file, whatever its name says. Pillow knows more, of which some start other programs.
_KINDS = ("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP")
# Images of more pixels are decoded one at a time: of a few bytes that unpack to gigabytes, one is enough.
_LARGE = 2**24
_MISSING = "No such file"
_one_large = threading.Lock()


def is_image(file: str | Path) -> bool:
    """Tell whether a file is an image, by its name."""
    name = os.path.basename(file)
    return os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")


def is_image_inside(file: str | Path) -> bool:
    """Tell whether a file begins as images do, whatever its name says."""
    try:
        with Image.open(file, formats=_kinds()):
            return True
    except Exception:  # Of a damaged file Pillow raises nearly anything.
        return False


def image_files(folder: Path) -> list[Path]:
    """List the images of a folder, at any depth."""
    # In the order of paths, of which texts are not: "a-b/c" comes after "a/c".
    return list(map(Path, sorted(_below(os.fspath(folder)), key=lambda path: path.split(os.sep))))


def _below(folder: str) -> Iterator[str]:
    """Names alone, with no look at the files where the folder says what they are: there may be millions."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            # A link to a folder may lead to where it lies. A pipe or a device is never read to its end.
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif is_image(entry.name) and (entry.is_symlink() or entry.is_file()):
                yield entry.path
    for path in folders:
        yield from _below(path)


def to_square(image: Image.Image, size: int, channels: int = 3) -> Pixels:
    """Set an image upright, scale it (bicubic) so that its shorter side fits, and crop it to the central square."""
    upright = _of_eight_bits(ImageOps.exif_transpose(image)).convert(MODES[channels])
    square = np.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC))
    return np.asarray(square.reshape(size, size, channels).transpose(2, 0, 1))


def _of_eight_bits(image: Image.Image) -> Image.Image:
    """On white where it is transparent, and with 8 bits a channel; Pillow would drop the one, and clip the others."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, whose range is not known; save it with 8 or 16")
    if not image.has_transparency_data:
        return image
    opaque = Image.new("RGBA", image.size, "white")
    opaque.alpha_composite(image.convert("RGBA"))
    return opaque


def decode(file: Path, size: int, channels: int = 3) -> Pixels | str:
    """Read an image as `to_square` has it."""
    try:
        if not file.is_file():
            return f"{file} ({'not a file' if file.exists() else _MISSING})"
        with (
            Image.open(file, formats=_kinds()) as image,
            _one_large if image.width * image.height > _LARGE else nullcontext(),
        ):
            # JPEG files unpack faster at a half, a quarter or an eighth, at least twice as large as needed.
            image.draft(None, (2 * size, 2 * size))
            return to_square(image, size, channels)
    except Exception as error:  # A damaged image makes Pillow raise nearly anything, a struct.error for one.
        return f"{file} ({reason_of(error)})"


def read_ahead(
    files: Sequence[Path], batches: Iterable[Iterable[int]], size: int, channels: int = 3
) -> Iterator[list[Pixels | str]]:
    """Decode the files of each batch by threads, those of the next while the caller works."""
    with ThreadPoolExecutor() as pool:
        begun: deque[list[Future[Pixels | str]]] = deque()
        for rows in batches:
            begun.append([pool.submit(decode, files[row], size, channels) for row in rows])
            if len(begun) > 1:
                yield [one.result() for one in begun.popleft()]
        for batch in begun:
            yield [one.result() for one in batch]


@cache
def _kinds() -> tuple[str, ...]:
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
