import gzip
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.data.icon_classes import find_copies, join_names, make_classes
from experiments.data.icon_drawings import SIDE, draw
from experiments.data.icon_themes import find_families, find_themes, icon_folders
from experiments.data.icons import icon_census
from robustdml.cache import cache_folder
from robustdml.data import load_data
from robustdml.errors import UsageError

SHARP = '<svg xmlns="http://www.w3.org/2000/svg" {size}><rect width="100%" height="100%" fill="{fill}"/></svg>'
NAMES = [f"{word}-{number}" for word in ("document", "folder", "mail") for number in range(4)]


@pytest.fixture
def icons(tmp_path, monkeypatch):
    """An empty folder of themes, the only one that is looked into."""
    folder = tmp_path / "share" / "icons"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'share'}:{tmp_path / 'nowhere'}")
    return folder


def make_theme(icons, name, folders):
    """Write an index: of each subfolder the lines that describe it."""
    for sub in folders:
        (icons / name / sub).mkdir(parents=True)
    sections = "\n".join(f"[{sub}]\n{lines}\n" for sub, lines in folders.items())
    text = f"[Icon Theme]\nName={name}\nDirectories={','.join(folders)}\n\n{sections}"
    (icons / name / "index.theme").write_text(text, encoding="utf-8")
    return icons / name


def make_png(path, seed, size=64, seed_of_colour=0):
    """Dark squares on transparent ground, other ones for another seed."""
    squares = (
        np.random.default_rng(seed).integers(0, 2, (8, 8), dtype=np.uint8).repeat(size // 8, 0).repeat(size // 8, 1)
    )
    colour = np.random.default_rng(seed_of_colour).integers(0, 100, 3)
    pixels = np.concatenate([np.broadcast_to(colour, (size, size, 3)), 255 * squares[..., None]], axis=2)
    Image.fromarray(pixels.astype(np.uint8), "RGBA").save(path)


def make_themes(icons, families=5):
    for family in range(families):
        theme = make_theme(icons, f"Theme{family}", {"64x64/actions": "Size=64\nContext=Actions"})
        for number, name in enumerate(NAMES):
            make_png(theme / "64x64/actions" / f"{name}.png", (family, number))


def test_which_file_a_theme_has(icons):
    theme = make_theme(
        icons,
        "Fine",
        {
            "16": "Size=16\nContext=Applications",
            "48": "Size=48\nContext=Applications",
            "48@2": "Size=48\nScale=2\nContext=Applications",
            "256": "Size=256\nContext=Applications",
            "scalable": "Size=48\nMinSize=8\nMaxSize=512\nType=Scalable\nContext=Applications",
            "films": "Size=64\nContext=Animations",
        },
    )
    files = {
        "all": ("16/{}.png", "48/{}.png", "48@2/{}.png", "256/{}.png"),
        "small": ("16/{}.png", "48/{}.png"),
        "drawn": ("48/{}.png", "48@2/{}.png", "scalable/{}.svg"),
        "coloured": ("16/{}.png", "scalable/{}-symbolic.svg"),
        "plain": ("scalable/{}-symbolic.svg",),
        "turned-rtl": ("scalable/turned-symbolic-rtl.svg",),
        "film": ("films/{}.png",),
        "text": ("48/{}.txt",),
    }
    for name, members in files.items():
        for file in members:
            (theme / file.format(name)).touch()
    (theme / "48/dangling.png").symlink_to("nothing.png")
    (families,) = find_families(find_themes(icon_folders())).values()
    assert {name: os.path.relpath(file.path, theme) for name, file in families.items()} == {
        "all": "48@2/all.png",
        "small": "48/small.png",
        "drawn": "scalable/drawn.svg",
        "coloured": "16/coloured.png",
        "plain": "scalable/plain-symbolic.svg",
        "turned-rtl": "scalable/turned-symbolic-rtl.svg",
    }
    assert {file.context for file in families.values()} == {"apps"}


def test_variants_are_one_theme(icons):
    lines = {"a": "Size=64"}
    themes = (
        "Pine-Dark",
        "Pine",
        "Pineapple",
        "Pine-Dark-Blue",
        "gnome",
        "gnome-wise",
        "gnome-colors-common",
        "hicolor",
    )
    for number, name in enumerate(themes):
        make_png(make_theme(icons, name, lines) / "a" / "x.png", number)
    (icons / "Pine-Dark" / "a" / "only-dark.png").touch()
    (icons / "broken").mkdir()
    (icons / "broken" / "index.theme").write_text("no section", encoding="utf-8")
    (icons / "empty").mkdir()
    (icons / "empty" / "index.theme").write_text("[Other]\nA=b\n", encoding="utf-8")
    found = find_families(find_themes(icon_folders()))
    assert list(found) == ["Pine", "Pineapple", "gnome", "gnome-colors"]
    assert [Path(file.path).parts[-3] for file in found["Pine"].values()] == ["Pine-Dark", "Pine"]


def test_of_two_folders_the_first_counts(icons, tmp_path, monkeypatch):
    other = tmp_path / "other" / "icons"
    for folder in (icons, other):
        (make_theme(folder, "Same", {"a": "Size=64"}) / "a" / "x.png").touch()
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'other'}:{tmp_path / 'share'}:{tmp_path / 'other'}")
    assert icon_folders() == [other, icons]
    assert find_families(find_themes(icon_folders()))["Same"]["x"].path == str(other / "Same" / "a" / "x.png")


def test_drawing(tmp_path):
    resvg = pytest.importorskip("resvg_py", reason="resvg_py draws SVG; pip install 'robustdml_ops[icons]'")
    # Points and no viewBox, as the oldest themes have it; twice as high as wide.
    (tmp_path / "tall.svg").write_text(SHARP.format(size='width="24pt" height="48pt"', fill="#ff0000"))
    (tmp_path / "tall.svgz").write_bytes(gzip.compress((tmp_path / "tall.svg").read_bytes()))
    red = Image.new("RGBA", (32, 64), (255, 0, 0, 255))
    red.save(tmp_path / "tall.png")
    for name in ("tall.svg", "tall.svgz", "tall.png"):
        pixels = draw(str(tmp_path / name), resvg)
        assert pixels.shape == (3, SIDE, SIDE)
        assert (pixels[1:, :, SIDE // 4 + 1 : -SIDE // 4 - 1] == 0).all(), name
        assert (pixels[:, :, : SIDE // 4 - 1] == 255).all() and (pixels[:, :, 1 - SIDE // 4 :] == 255).all(), name
    # The colour of what is transparent does not show at the edge.
    edge = np.zeros((8, 8, 4), np.uint8)
    edge[2:6, 2:6] = 255
    Image.fromarray(edge, "RGBA").save(tmp_path / "edge.png")
    assert draw(str(tmp_path / "edge.png"), resvg).min() >= 254
    (tmp_path / "broken.svg").write_text("<svg><rect></svg>")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    for name in ("broken.svg", "broken.png"):
        assert str(draw(str(tmp_path / name), resvg)).startswith(f"{tmp_path / name} (")


def test_copies():
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (6, 3, 4, 4), dtype=np.uint8)
    pictures[3] = np.clip(pictures[1].astype(int) + random.integers(-8, 9, pictures[1].shape), 0, 255)
    pictures[5] = np.clip(pictures[3].astype(int) + random.integers(-8, 9, pictures[1].shape), 0, 255)
    digests = [picture.tobytes() for picture in pictures]
    digests[4] = digests[0]
    # 1 and 3 stand for one name, 3 and 5 for another; 0 and 4 are the same pixels.
    assert find_copies(pictures, digests, [[1, 3, 0], [2, 5, 3], [4]]) == [0, 1, 2, 1, 0, 1]
    assert find_copies(pictures, digests, [[1], [3, 0], [2, 5]]) == [0, 1, 2, 3, 0, 5]


def test_names_are_joined_where_most_themes_agree():
    drawings = {
        "save": {"A": 1, "B": 2, "C": 3, "D": 4},
        "keep": {"A": 1, "B": 2, "C": 30},  # two of three
        "store": {"A": 1, "B": 20, "C": 31},  # one of three
        "disk": {"A": 9, "E": 5},
        "drive": {"A": 9},  # one theme alone
        "copied": {"A": 7, "F": 7},  # one drawing in two themes is one vote
        "copy": {"A": 7, "F": 7},
    }
    groups = join_names(drawings)
    assert ("save", "keep") in groups
    assert sorted(name for group in groups for name in group) == sorted(drawings)
    assert [len(group) for group in groups if group != ("save", "keep")] == [1] * 5
    save = next(icon for icon in make_classes(drawings, groups) if icon.names[0] == "save")
    assert save.samples == {"A": 1, "B": 2, "C": 3, "D": 4}


def test_a_chain_does_not_join_its_ends():
    drawings = {
        "audio": {"A": 1, "B": 2, "C": 3, "D": 4, "E": 5},
        "sound": {"A": 1, "B": 2, "C": 3},
        "media": {"A": 1, "B": 2, "F": 6, "G": 7, "H": 8},
        "video": {"C": 9, "D": 10, "E": 11, "F": 6, "G": 7, "H": 8},
    }
    groups = set(join_names(drawings))
    assert ("audio", "sound", "media", "video") not in groups
    assert not any({"audio", "video"} <= set(group) for group in groups)
    assert {"audio", "sound"} <= set(next(group for group in groups if "audio" in group))


def test_icons_of_themes(icons):
    pytest.importorskip("resvg_py", reason="resvg_py draws SVG; pip install 'robustdml_ops[icons]'")
    make_themes(icons)
    places = [icons / f"Theme{family}" / "64x64/actions" for family in range(5)]
    # One of a recoloured variant, which is no drawing of its own.
    make_png(make_theme(icons, "Theme0-Dark", {"a": "Size=64"}) / "a" / "document-0.png", 99)
    # A theme that copies two drawings, one of them in another size, and adds one.
    copy = make_theme(icons, "Zebra", {"a": "Size=48\nScale=2\nContext=Actions"})
    make_png(copy / "a" / "document-0.png", (0, 0), size=96)
    make_png(copy / "a" / "document-1.png", (0, 1))
    make_png(copy / "a" / "document-2.png", 77)
    # An alias in three themes, and a link in one alone.
    for place in places[:3]:
        (place / "save.png").symlink_to("document-3.png")
    (places[0] / "folder-1.png").unlink()
    (places[0] / "folder-1.png").symlink_to("folder-2.png")
    # What three themes draw, and what is pale or broken in one of four.
    for family, place in enumerate(places[:4]):
        if family < 3:
            make_png(place / "rare.png", (8, family))
        make_png(place / "pale.png", (9, family))
        make_png(place / "torn.png", (10, family))
    Image.new("RGBA", (64, 64), (240, 240, 240, 255)).save(places[0] / "pale.png")
    (places[0] / "torn.png").write_bytes(b"torn")

    data, validation = load_data("icons"), load_data("icons-validation")
    names = [*data.train.class_names, *data.test.class_names]
    assert sorted(names) == sorted(f"actions/{name}" for name in NAMES)
    counts = dict(
        zip(names, np.concatenate([np.bincount(part.labels) for part in (data.train, data.test)]), strict=True)
    )
    assert counts == {f"actions/{name}": 6 if name == "document-2" else 5 for name in NAMES}
    assert data.train.inputs.shape == (len(data.train.labels), 3, SIDE, SIDE)
    assert data.train.inputs.dtype == np.uint8
    # The images are those of their names.
    resvg = sys.modules["resvg_py"]
    for part in (data.train, data.test):
        for label, name in enumerate(part.class_names):
            found = {image.tobytes() for image in part.inputs[part.labels == label]}
            assert {draw(str(place / f"{name.split('/')[1]}.png"), resvg).tobytes() for place in places} <= found
    assert validation.name == "icons-validation"
    assert (*validation.train.class_names, *validation.test.class_names) == data.train.class_names
    assert np.array_equal(np.concatenate([validation.train.inputs, validation.test.inputs]), data.train.inputs)

    census = icon_census()
    families = {"Theme0": 16, "Theme1": 16, "Theme2": 16, "Theme3": 14, "Theme4": 12, "Zebra": 3}
    assert census["families"] == families
    assert census["names"] == 16
    assert census["names by families"] == {"4": 14, "6": 3, "8": 0, "10": 0}
    assert census["blank"] == 1
    assert len(census["unreadable"]) == 1 and str(places[0] / "torn.png") in census["unreadable"][0]
    assert census["classes before joining"] == {"4": 12, "6": 1, "8": 0, "10": 0}
    assert census["names joined"] == 2
    assert census["samples"] == 61
    assert census["samples whose drawing is in another class too"] == 2
    assert census["pairs of names that share a drawing and are not joined"] == 1


def test_icons_are_made_once_and_anew_where_a_theme_changed(icons):
    pytest.importorskip("resvg_py", reason="resvg_py draws SVG; pip install 'robustdml_ops[icons]'")
    make_themes(icons)
    first = load_data("icons")
    (made,) = cache_folder().glob("icons-*.npy")
    stamp = made.stat().st_mtime_ns
    assert np.array_equal(load_data("icons").test.inputs, first.test.inputs)
    assert made.stat().st_mtime_ns == stamp
    make_png(make_theme(icons, "Another", {"a": "Size=64"}) / "a" / "mail-0.png", 5)
    again = load_data("icons")
    assert len(again.train) + len(again.test) == len(first.train) + len(first.test) + 1
    assert [path.name for path in cache_folder().glob(".icons*")] == []


def test_what_is_missing_is_told(icons, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UsageError, match=r"pip install 'robustdml_ops\[icons\]'"):
        load_data("icons")
    monkeypatch.undo()


def test_too_few_themes_are_told(icons):
    pytest.importorskip("resvg_py", reason="resvg_py draws SVG; pip install 'robustdml_ops[icons]'")
    with pytest.raises(UsageError, match=r"0 icon themes found \(none\).*apt install adwaita-icon-theme"):
        load_data("icons")
    make_themes(icons, 3)
    with pytest.raises(UsageError, match=r"3 icon themes found \(Theme0, Theme1, Theme2\), and 0 classes"):
        load_data("icons-validation")
    # Four themes that are copies of one another.
    shutil.copytree(icons / "Theme0", icons / "Twin")
    with pytest.raises(UsageError, match=r"4 icon themes found .*, and 0 classes"):
        load_data("icons")
    assert list(cache_folder().glob("*icons*")) == []


@pytest.mark.slow
def test_icons_of_this_machine():
    pytest.importorskip("resvg_py", reason="resvg_py draws SVG; pip install 'robustdml_ops[icons]'")
    families = find_families(find_themes(icon_folders()))
    if len(families) < 8:
        pytest.skip(f"{len(families)} icon themes are installed, and 8 are needed; docs/icons.md says how")
    data, validation = load_data("icons"), load_data("icons-validation")
    assert data.train.num_classes > 200
    assert not set(data.train.class_names) & set(data.test.class_names)
    assert not set(validation.test.class_names) & set(data.test.class_names)
    for part in (data.train, data.test):
        assert np.bincount(part.labels).min() >= 4
        assert part.inputs.reshape(len(part), -1).min(axis=1).max() < 216
    census = icon_census()
    assert len(census["unreadable"]) < 0.01 * census["files drawn"]
    assert census["classes"]["4"] == data.train.num_classes + data.test.num_classes
