import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTCollection, TTFont

from experiments.data import hangul, hanzi
from experiments.data.characters import atlas as atlases
from experiments.data.characters.atlas import Atlas, least_alike
from experiments.data.characters.script import ClassRange, Script
from experiments.data.characters.typefaces import Pen, Typeface, tells_characters_apart, typefaces
from robustdml.data import load_data
from robustdml.data.named import draw
from robustdml.errors import UsageError

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SHIPPED = tuple(path for path in sorted(FONTS.glob("DejaVu*.ttf")) if "Display" not in path.name)
# Of the three Greek letters two are drawn as Latin ones.
LETTERS = ((0x41, 0x5A), (0x61, 0x7A), (0x391, 0x393))


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    return tmp_path_factory.mktemp("drawings")


@pytest.fixture
def letters(drawings, own_cache, monkeypatch):
    """An atlas of letters, drawn once for all tests of this file.

    The typefaces that matplotlib ships stand for those of the system, which differ from machine to machine.
    """
    monkeypatch.setattr(atlases, "font_files", lambda probes: SHIPPED)
    monkeypatch.setenv("ROBUSTDML_CACHE", str(drawings))
    return Atlas("letters", LETTERS, "A", at_least=6, at_most=8)


def square(side):
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((0, side), (side, side), (side, 0)):
        pen.lineTo(point)
    pen.closePath()
    return pen.glyph()


def make_font(path, sides, shared=False):
    """A typeface that draws characters as squares, by code point; ``shared``: through one glyph."""
    names = {code: "box" if shared else f"g{code:X}" for code in sides}
    glyphs = {".notdef": square(100), **{names[code]: square(side) for code, side in sides.items()}}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(list(glyphs))
    builder.setupCharacterMap(names)
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": path.stem, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


@pytest.mark.nightly
def test_classes_are_drawings_that_differ(letters):
    images, codes = letters.load()
    assert isinstance(images, np.memmap)
    assert images.shape == (len(codes), 1, 32, 32)
    starts = np.append(np.flatnonzero(np.diff(codes, prepend=-1)), len(codes))
    assert len(starts) - 1 == len(set(codes.tolist())) > 30
    for start, stop in pairwise(starts):
        assert 6 <= stop - start <= 8
        pixels = images[start:stop].reshape(stop - start, -1).astype(np.float32)
        pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
        assert ((pixels @ pixels.T)[np.triu_indices(stop - start, 1)] < letters.alike + 1e-6).all()
    # In random order of the classes.
    assert (np.diff(codes[starts[:-1]]) < 0).any()


def test_of_classes_with_one_drawing_one_is_kept(letters):
    images, codes = letters.load()
    kept = {chr(code) for code in codes}
    for latin, greek in ("A\u0391", "B\u0392"):
        assert len(kept & {latin, greek}) == 1
    assert {"Q", "q", "Γ"} <= kept
    owners = {}
    for image, code in zip(images, codes, strict=True):
        assert owners.setdefault(image.tobytes(), code) == code


@pytest.mark.nightly
def test_distorted_drawings_are_those_of_the_same_characters(letters):
    (plain, codes), (bent, codes_bent) = letters.load(), replace(letters, distorted=True).load()
    assert np.array_equal(codes, codes_bent)
    assert bent.shape == plain.shape
    assert not (bent == plain).reshape(len(bent), -1).all(axis=1).any()
    ink = bent.reshape(len(bent), -1).mean(axis=1) / plain.reshape(len(plain), -1).mean(axis=1)
    assert 0.9 < np.median(ink) < 1.1
    # Each by a map of its own: of one class no two are bent alike.
    assert len({image.tobytes() for image in bent}) == len(bent)


@pytest.mark.nightly
def test_made_once_and_alike_every_time(letters, drawings, monkeypatch, tmp_path):
    images, codes = letters.load()
    with monkeypatch.context() as patch:
        patch.setattr(atlases, "_draw_all", lambda *_: pytest.fail("drawn again"))
        again, _ = letters.load()
        assert np.array_equal(images, again)
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "other"))
    anew, codes_anew = letters.load()
    assert np.array_equal(images, anew)
    assert np.array_equal(codes, codes_anew)
    assert replace(letters, at_most=7).key() != letters.key()
    monkeypatch.setattr(atlases, "font_files", lambda probes: SHIPPED[:-1])
    assert not [path for path in drawings.iterdir() if letters.key() in path.name]


def test_the_least_alike_are_chosen():
    axes = np.eye(4, dtype=np.uint8)[:, None] * 200
    near = axes[0] + np.array([[0, 20, 0, 0]], np.uint8)
    middle = np.full((1, 4), 100, np.uint8)
    images = [axes[0], near, axes[1], middle]
    # The second is most like all; then its opposite, then what is between; the first is all but the second.
    assert least_alike(images, 4, 0.97) == [1, 2, 3]
    assert least_alike(images, 4, 0.999) == [1, 2, 3, 0]
    assert least_alike(images, 2, 0.97) == [1, 2]
    assert least_alike([middle, middle], 4, 0.97) == [0]


def test_typefaces_that_do_not_tell_characters_apart(tmp_path):
    codes = range(0x4E00, 0x4E00 + 60)
    honest = make_font(tmp_path / "honest.ttf", {code: 300 + 8 * (code - 0x4E00) for code in codes})
    liar = make_font(tmp_path / "liar.ttf", {code: 300 + 100 * (code % 4) for code in codes})
    lacking = make_font(tmp_path / "lacking.ttf", dict.fromkeys(codes, 100))
    found = typefaces([honest, liar, lacking], frozenset(codes))
    assert [face.path for face in found] == [honest, liar, lacking]
    assert [tells_characters_apart(face, 64) for face in found] == [True, False, False]
    assert Pen(found[2], 28).draw(0x4E00) is None
    assert Pen(found[0], 28).draw(0x4E00) is not None


def test_faces_of_a_collection_bring_what_is_new(tmp_path):
    first = make_font(tmp_path / "first.ttf", {0x4E00: 300, 0x4E01: 400})
    collection = TTCollection()
    collection.fonts = [TTFont(first), TTFont(first), TTFont(make_font(tmp_path / "other.ttf", {0x4E00: 500}))]
    # As in the collections of one family: the second face draws U+4E01 as the first does, and U+4E00 otherwise.
    for table in collection.fonts[1]["cmap"].tables:
        table.cmap = {0x4E00: "g4E01", 0x4E01: "g4E01"}
    collection.save(tmp_path / "all.ttc", shareTables=True)
    found = typefaces([tmp_path / "all.ttc"], frozenset((0x4E00, 0x4E01, 0x4E02)))
    assert [face.code_points.tolist() for face in found] == [[0x4E00, 0x4E01], [0x4E00], [0x4E00]]
    assert [face.index for face in found] == [0, 1, 2]
    inks = [int((Pen(face, 28).draw(0x4E00) > 0).sum()) for face in found]
    assert inks[0] < inks[1] < inks[2]


def test_a_broken_typeface_draws_nothing(tmp_path):
    path = tmp_path / "broken.ttf"
    with TTFont(FONTS / "DejaVuSans.ttf") as font:
        font["prep"].program.fromBytecode([0x7B])  # No instruction has this number.
        font.save(path)
    broken = typefaces([path], frozenset(b"AB"))[0]
    pen = Pen(broken, 28)
    with pytest.raises(OSError, match="invalid opcode"):
        draw("A", pen._font)
    assert pen.draw(ord("A")) is None
    assert not tells_characters_apart(broken, 28)


@pytest.mark.nightly
def test_installed_fonts_are_found_once(tmp_path):
    folder = tmp_path / "fonts"
    folder.mkdir()
    shutil.copy(FONTS / "DejaVuSans.ttf", folder)
    (folder / "link.ttf").symlink_to("DejaVuSans.ttf")
    (folder / "broken.ttf").write_bytes(b"no font")
    shutil.copy(FONTS / "cmsy10.ttf", folder)
    code = (
        "from experiments.data.characters.typefaces import font_files\n"
        f"print([p.name for p in font_files('Ѐ') if p.is_relative_to({str(tmp_path)!r})])"
    )
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['DejaVuSans.ttf']"


def test_parts_of_a_script_share_no_character(letters):
    parts = {"abc": (ClassRange(10, 20), ClassRange(5, 10)), "abc-validation": (ClassRange(10, 16), ClassRange(16, 20))}
    script = Script(letters, "fonts-one fonts-two", ClassRange(0, 5), parts)
    data, validation, pretraining = script.load("abc"), script.load("abc-validation"), script.load_pretraining()
    assert data.name == "abc"
    assert (data.train.num_classes, data.test.num_classes, pretraining.num_classes) == (10, 5, 5)
    names = [set(split.class_names) for split in (data.train, data.test, pretraining)]
    assert len(set.union(*names)) == 20
    assert not set(validation.test.class_names) & {*data.test.class_names, *validation.train.class_names}
    assert set(validation.test.class_names) < set(data.train.class_names)
    for split in (data.train, data.test, pretraining):
        assert np.array_equal(np.unique(split.labels), np.arange(split.num_classes))
        assert isinstance(split.inputs, np.memmap)
    code = int(data.train.class_names[3].split()[0][2:], 16)
    pens = [Pen(Typeface(path, 0, np.array([code])), atlases.POINT_SIZE) for path in SHIPPED]
    images = data.train.inputs[data.train.labels == 3]
    assert {image.tobytes() for image in images} <= {pen.draw(code).tobytes() for pen in pens}


def test_too_few_typefaces(letters, monkeypatch):
    parts = {"abc": (ClassRange(10, 20), ClassRange(5, 10_000))}
    message = r"abc: .* draw \d\d characters in 6 ways or more, and 10,000 are needed; .*apt install fonts-one two\)"
    with pytest.raises(UsageError, match=message):
        Script(letters, "fonts-one two", ClassRange(0, 5), parts).load("abc")
    monkeypatch.setattr(atlases, "font_files", lambda probes: ())
    for name in ("hanzi", "hanzi-small-validation", "hangul"):
        with pytest.raises(UsageError, match=f"{name}: .* draw 0 characters in 10 ways .*apt install fonts-noto-cjk"):
            load_data(name)


def test_the_names_of_the_scripts_divide_the_classes():
    for script in (hanzi.HANZI, hangul.HANGUL):
        for name, (train, test) in script.parts.items():
            assert train.stop <= test.start or test.stop <= train.start
            for part in (train, test):
                assert part.start >= script.pretraining.stop
            if name.endswith("-validation"):
                reported = script.parts[name.removesuffix("-validation")][1]
                assert test.stop <= reported.start or test.start >= reported.stop
