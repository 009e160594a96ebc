"""Icons: the same thing drawn by many hands, from the icon themes that are installed.

A class is an icon name, a sample is that name in one theme; ``docs/icons.md`` describes the data.
"""

import hashlib
import json
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
from numpy.typing import NDArray

from experiments.data.icon_drawings import SIDE
from experiments.data.icon_set import MIN_SAMPLES, families_by_name, make_icon_set
from experiments.data.icon_themes import Themes, find_families, find_themes, icon_folders, themes_state
from robustdml.cache import cache_folder, make_once, read_array, write_text, write_whole
from robustdml.data.dataset import RetrievalData, Split, divide_classes
from robustdml.data.named.named import NamedData
from robustdml.errors import UsageError

RECIPE_VERSION = 1
# Classes that there must be: training and test, each halved again.
MIN_CLASSES = 4
SPLIT_SEED = 0
# What docs/icons.md was written with.
PACKAGES = (
    "adwaita-icon-theme breeze-icon-theme deepin-icon-theme elementary-icon-theme elementary-xfce-icon-theme "
    "faba-icon-theme faenza-icon-theme gnome-accessibility-themes gnome-brave-icon-theme gnome-icon-theme "
    "gnome-icon-theme-gartoon gnome-icon-theme-nuovo gnome-icon-theme-suede gnome-icon-theme-yasis lxde-icon-theme "
    "mate-icon-theme mint-y-icons moka-icon-theme numix-icon-theme numix-icon-theme-circle obsidian-icon-theme "
    "oxygen-icon-theme paper-icon-theme papirus-icon-theme sugar-icon-theme suru-icon-theme tango-icon-theme "
    "ukui-themes yaru-theme-icon"
)


def load_icons(name: str = "icons") -> RetrievalData:
    """Icons, split by class into training and test.

    Examples
    --------
    >>> load_icons("icons").train.inputs.shape[1:]  # doctest: +SKIP
    (3, 112, 112)
    """
    images, notes = _load_whole()
    # The classes are in the order of four quarters: two of training and two of test for icons, and for
    # icons-validation the first of training and the second of test.
    ends = np.cumsum([0, *notes["quarters"]]).tolist()
    bounds = (ends[0], ends[2], ends[4]) if name == "icons" else (ends[0], ends[1], ends[2])
    train, test = (_cut(images, notes["class_names"], notes["sizes"], *part) for part in pairwise(bounds))
    return RetrievalData(name, train, test)


def icon_census() -> dict[str, Any]:
    """Tell what the icons were made of: families of themes, names, copies, joined names, and what was left out."""
    census: dict[str, Any] = _load_whole()[1]["census"]
    return census


NAMED = {
    name: NamedData("icons", partial(load_icons, name), backbone="efficientnet-lite0", taxonomy="icons")
    for name in ("icons", "icons-validation")
}


def _load_whole() -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Images in the order of their classes, and what is known of them; made where they are not in the cache."""
    if find_spec("resvg_py") is None:
        raise UsageError(
            "icons: most of them are SVG drawings, and the package that draws them is not installed: "
            "`pip install 'robustdml_ops[icons]'`"
        )
    themes = find_themes(icon_folders())
    stem = cache_folder() / f"icons-{_key(themes)}"
    images, notes = stem.with_suffix(".npy"), stem.with_suffix(".json")
    make_once(lambda: _make(themes, images, notes), images, notes)
    return read_array(images, "r"), json.loads(notes.read_text(encoding="utf-8"))


def _key(themes: Themes) -> str:
    """Return what the images depend on: this recipe, the files of the themes and the libraries that draw them."""
    versions = f"{RECIPE_VERSION} {SIDE} {MIN_SAMPLES} {PIL.__version__} {import_module('resvg_py').__version__}"
    return hashlib.sha256(f"{versions}\n{themes_state(themes)}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _make(themes: Themes, images: Path, notes: Path) -> None:
    families = find_families(themes)
    count = sum(len(owners) >= MIN_SAMPLES for owners in families_by_name(families).values())
    if count < MIN_CLASSES:
        raise _too_few(families, count)
    images.parent.mkdir(parents=True, exist_ok=True)
    with make_icon_set(families, import_module("resvg_py"), images.parent) as icons:
        count = len(icons.classes)
        if count < MIN_CLASSES:
            raise _too_few(families, count)
        train, test = divide_classes(count, "icons", 0.5, SPLIT_SEED)
        quarters = [
            half[part] for half in (train, test) for part in divide_classes(len(half), "icons", 0.5, SPLIT_SEED)
        ]
        order = np.concatenate(quarters)
        rows = [list(icons.classes[label].samples.values()) for label in order]

        def write(file: BinaryIO) -> None:
            shape = (sum(map(len, rows)), *icons.pixels.shape[1:])
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            for members in rows:
                file.write(icons.pixels[members].tobytes())

        write_whole(images, write)
    known = {
        "class_names": [icons.class_names[label] for label in order],
        "names": [icons.classes[label].names for label in order],
        "families": [list(icons.classes[label].samples) for label in order],
        "sizes": [len(members) for members in rows],
        "quarters": [len(quarter) for quarter in quarters],
        "census": icons.census,
    }
    write_text(notes, json.dumps(known))


def _too_few(families: Iterable[str], count: int) -> UsageError:
    names = list(families)
    return UsageError(
        f"icons: {len(names)} icon themes found ({', '.join(names) or 'none'}), and {count} classes drawn by "
        f"{MIN_SAMPLES} of them or more; install others (Debian, Ubuntu: apt install {PACKAGES})"
    )


def _cut(images: NDArray[np.uint8], names: list[str], sizes: list[int], start: int, stop: int) -> Split:
    """Take a run of classes, without copying their images."""
    labels = np.repeat(np.arange(stop - start, dtype=np.int64), sizes[start:stop])
    first = sum(sizes[:start])
    return Split(images[first : first + len(labels)], labels, tuple(names[start:stop]))
