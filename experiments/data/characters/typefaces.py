"""The typefaces of this machine that have some characters, without those that draw them wrongly."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from fontTools.ttLib import TTFont
from matplotlib.font_manager import findSystemFonts
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import ImageFont

from robustdml.data.named import draw
from robustdml.errors import quiet

# No typeface has this code point: its drawing is that of every missing character.
LACKING = 0x10FFFF
TRIED = 200
REPEATED = 0.05


@dataclass(frozen=True)
class Typeface:
    """One face of a font file, and which of the wanted characters it has."""

    path: Path  # The file
    index: int  # Number of the face in it
    # int64, ascending; without those that an earlier face of the file draws with the same glyph
    code_points: NDArray[np.int64]


@cache
def font_files(probes: str) -> tuple[Path, ...]:
    """Font files of this machine that have one of the characters."""
    files = {Path(path).resolve() for path in findSystemFonts()}
    return tuple(sorted((path for path in files if _has_one(path, probes)), key=lambda path: (path.name, path)))


def typefaces(files: Sequence[Path], wanted: frozenset[int]) -> list[Typeface]:
    """The faces of some files, with the wanted characters of each."""
    found = []
    for path in files:
        drawn: set[tuple[int, int, int]] = set()
        for index in range(FT2Font(str(path)).num_faces):
            # fontTools warns of tables that are not used here.
            with quiet("fontTools"), TTFont(path, fontNumber=index, lazy=True) as font:
                outlines = _place_of_outlines(font)
                glyphs = {
                    (code, outlines, font.getGlyphID(name))
                    for code, name in (font.getBestCmap() or {}).items()
                    if code in wanted
                }
                # Breaks a reference cycle that holds tens of megabytes a face until garbage collection.
                font.tables.clear()
            if new := sorted(code for code, _, _ in glyphs - drawn):
                found.append(Typeface(path, index, np.array(new)))
            drawn |= glyphs
    return found


def tells_characters_apart(typeface: Typeface, point_size: int) -> bool:
    """Whether 200 characters have different drawings: some typefaces draw boxes for Han characters."""
    pen = Pen(typeface, point_size)
    tried = np.random.default_rng(0).permutation(typeface.code_points)[:TRIED]
    drawings = [drawing.tobytes() for code in tried if (drawing := pen.draw(int(code))) is not None]
    return len(set(drawings)) > (1 - REPEATED) * len(drawings)


class Pen:
    """A typeface, open for drawing."""

    def __init__(self, typeface: Typeface, point_size: int) -> None:
        # The basic layout is the same on every machine.
        self._font = ImageFont.truetype(
            str(typeface.path), point_size, typeface.index, layout_engine=ImageFont.Layout.BASIC
        )
        lacking = self._try_to_draw(LACKING)
        self._lacking = b"" if lacking is None else lacking.tobytes()

    def draw(self, code: int) -> NDArray[np.uint8] | None:
        """Draw a character; None if the typeface lacks it."""
        image = self._try_to_draw(code)
        return None if image is None or not image.any() or image.tobytes() == self._lacking else image

    def _try_to_draw(self, code: int) -> NDArray[np.uint8] | None:
        try:
            return draw(chr(code), self._font)
        except OSError:
            return None


def _has_one(path: Path, probes: str) -> bool:
    try:
        font = FT2Font(str(path))
    except RuntimeError:  # Bitmap fonts cannot be scaled.
        return False
    return any(font.get_char_index(ord(probe)) for probe in probes)


def _place_of_outlines(font: TTFont) -> int:
    """Offset of the outlines in the file; faces of a collection may share them."""
    tables = font.reader.tables
    return int(next((tables[tag].offset for tag in ("glyf", "CFF ", "CFF2") if tag in tables), -1))
