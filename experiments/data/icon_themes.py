"""The icon themes that are installed: which file each theme has for each icon name.

The layout is that of the freedesktop Icon Theme Specification: a folder with an ``index.theme``, which names subfolders
and says of each what size and what kind (context) of icons it holds.
"""

import os
import re
from collections import defaultdict
from configparser import Error as ParserError
from configparser import RawConfigParser, SectionProxy
from dataclasses import dataclass
from pathlib import Path

# Drawings below this many pixels are simplified for their size; above it the smallest is taken.
LEAST_SIZE = 64
RASTER, VECTOR = frozenset({".png"}), frozenset({".svg", ".svgz"})
# What tells the drawing in one colour from the coloured one of the same name; of it there may be a mirrored one.
_SYMBOLIC = re.compile("-symbolic(?=(-rtl)?$)")
# Not drawn by one hand, but what applications bring along.
_NO_THEMES = frozenset({"hicolor", "locolor", "default"})
# Variants whose names do not begin with the name of their family, and a family whose name begins with that of another.
_FAMILIES = {
    "ePapirus": "Papirus",
    "menta": "mate",
    **dict.fromkeys(
        ("gnome-brave", "gnome-dust", "gnome-human", "gnome-illustrious", "gnome-noble", "gnome-wine", "gnome-wise"),
        "gnome-colors",
    ),
    "gnome-colors": "gnome-colors",
}
# Contexts of the specification by what else themes write for them.
_CONTEXTS = {"applications": "apps", "filesystems": "places", "stock": "actions", "device": "devices"}
# Pictures of a film side by side, which are no icons.
_NOT_DRAWN = frozenset({"animations"})


@dataclass(frozen=True)
class IconFile:
    """What a theme has for a name."""

    path: str  # The file, which may be a link
    context: str  # Kind of icon as the theme has it, in small letters: `actions`, `apps`, `devices`, …


@dataclass(frozen=True)
class _Folder:
    """A subfolder of a theme: its context, and the pixels that its drawings are made for."""

    path: str
    context: str
    raster_size: float
    vector_size: float


Themes = dict[str, list[_Folder]]


def icon_folders() -> list[Path]:
    """Folders that themes are installed in: ``icons`` in each of ``XDG_DATA_DIRS``."""
    places = (os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    folders = dict.fromkeys(Path(place) / "icons" for place in places if place)
    return [folder for folder in folders if folder.is_dir()]


def find_themes(folders: list[Path]) -> Themes:
    """List the themes that are installed."""
    indices: dict[str, Path] = {}
    for folder in folders:
        for index in folder.glob("*/index.theme"):
            if index.parent.name not in _NO_THEMES:
                indices.setdefault(index.parent.name, index)
    return {name: _read_index(index) for name, index in sorted(indices.items())}


def themes_state(themes: Themes) -> str:
    """Describe what files of the themes may have changed: their subfolders and when those changed last."""
    return "\n".join(
        f"{folder.path}\t{os.stat(folder.path).st_mtime_ns}" for folders in themes.values() for folder in folders
    )


def find_families(themes: Themes) -> dict[str, dict[str, IconFile]]:
    """List the icons of all themes, variants of one theme (other colours, for dark windows) as one."""
    families: dict[str, dict[str, IconFile]] = defaultdict(dict)
    # A theme comes before its variants, for its name is shorter.
    for name in sorted(themes, key=lambda name: (len(name), name)):
        family = families[_family(name, themes)]
        for icon, file in _best_files(themes[name]).items():
            family.setdefault(icon, file)
    return {name: dict(sorted(family.items())) for name, family in sorted(families.items()) if family}


def _family(theme: str, themes: Themes) -> str:
    """Return the shortest name of a theme that this one's begins with, up to a hyphen."""
    words = theme.split("-")
    stems = ["-".join(words[:count]) for count in range(len(words), 0, -1)]
    for stem in stems:
        if stem in _FAMILIES:
            return _FAMILIES[stem]
    return min((stem for stem in stems if stem in themes), key=len)


def _best_files(folders: list[_Folder]) -> dict[str, IconFile]:
    """Return the best file of each name in one theme."""
    best: dict[str, tuple[tuple[bool, bool, float, str], IconFile]] = {}
    for folder in folders:
        for entry in os.scandir(folder.path):
            stem, suffix = os.path.splitext(entry.name)
            if suffix not in RASTER | VECTOR or not entry.is_file():
                continue
            size = folder.vector_size if suffix in VECTOR else folder.raster_size
            icon = _SYMBOLIC.sub("", stem)
            below = size < LEAST_SIZE
            rank = (icon != stem, below, -size if below else size, entry.path)
            if icon not in best or rank < best[icon][0]:
                best[icon] = rank, IconFile(entry.path, folder.context)
    return {icon: file for icon, (_, file) in best.items()}


def _read_index(index: Path) -> list[_Folder]:
    """Read what an index says; of a damaged one what it does not say is passed over, as desktops do."""
    parser = RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    try:
        parser.read_string(index.read_text(encoding="utf-8", errors="replace"))
    except ParserError:
        return []
    if "Icon Theme" not in parser:
        return []
    listed = ",".join(parser["Icon Theme"].get(key, "") for key in ("Directories", "ScaledDirectories"))
    names = dict.fromkeys(name.strip() for name in listed.split(","))
    found = [_read_folder(index.parent, parser[name]) for name in names if name in parser]
    return [folder for folder in found if folder.context not in _NOT_DRAWN and os.path.isdir(folder.path)]


def _read_folder(theme: Path, section: SectionProxy) -> _Folder:
    scale, size = _number(section, "Scale", 1), _number(section, "Size", 0)
    context = section.get("Context", "").lower()
    largest = _number(section, "MaxSize", size) if section.get("Type", "").lower() == "scalable" else size
    vector_size = max(size, min(LEAST_SIZE, largest))
    return _Folder(str(theme / section.name), _CONTEXTS.get(context, context), size * scale, vector_size * scale)


def _number(section: SectionProxy, key: str, default: float) -> float:
    try:
        return float(section.get(key, str(default)))
    except ValueError:
        return default
