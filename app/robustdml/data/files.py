"""The images of a folder, known by their suffix or their content, and what else lies there."""

import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from PIL import Image

from robustdml.data.images import kinds
from robustdml.errors import MAX_NAMED, counted

# Files and folders that systems and cloud disks leave, in lower case; so are names that begin with a dot.
_JUNK = frozenset(
    {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "@eadir", "__macosx", "#recycle", "$recycle.bin"}
    | {"system volume information", "lost+found"}
)
# A kind without a mark at its beginning: nearly any bytes may be one, so that its suffix alone tells.
_UNMARKED = "TGA"


def is_junk(name: str) -> bool:
    """Tell whether a file or folder is skipped in silence, by its name."""
    return name.startswith(".") or name.lower() in _JUNK


@cache
def image_suffixes() -> frozenset[str]:
    """Suffixes of the kinds of images that are read."""
    known = Image.registered_extensions().items()
    return frozenset(suffix for suffix, kind in known if kind in kinds() and kind != _UNMARKED) | {".tga"}


def is_image(file: str | Path) -> bool:
    """Tell whether a file is called an image, or holds one whatever it is called."""
    name = os.path.basename(file)
    if is_junk(name):
        return False
    return os.path.splitext(name)[1].lower() in image_suffixes() or is_image_inside(file)


def is_image_inside(file: str | Path) -> bool:
    """Tell whether a file begins as images do, whatever its name says."""
    if not os.path.isfile(file):  # A pipe is never opened.
        return False
    try:
        called = str(file).lower().endswith(".tga")
        with Image.open(file, formats=[kind for kind in kinds() if called or kind != _UNMARKED]):
            return True
    except Image.DecompressionBombError:
        return True  # Refused when it is decoded, by its name.
    except Exception:  # As in `decode`: a file that is none makes Pillow raise nearly anything.
        return False


def visible_folders(folder: Path) -> list[Path]:
    """List the folders in a folder, without those that systems make."""
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if not is_junk(entry.name) and _leads_to_folder(entry))


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    # Of a link to itself `is_dir` raises an error.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


class PassedOver(Counter[str]):
    """How many files of each kind are no images."""

    def add(self, name: str) -> None:
        """Count a file by its suffix."""
        self[os.path.splitext(name)[1].lower() or "without a suffix"] += 1

    def notes(self) -> list[str]:
        """Say how many files of which kinds were passed over, if any."""
        most = sorted(self.items(), key=lambda one: (-one[1], one[0]))
        said = [f"{count:,} {kind}" for kind, count in most[:MAX_NAMED]]
        said += [f"{sum(count for _, count in most[MAX_NAMED:]):,} others"] if len(most) > MAX_NAMED else []
        return [f"passed over {counted(self.total(), 'file')}: {', '.join(said)}"] if self else []


def image_files(folder: Path, passed: PassedOver) -> list[Path]:
    """List the images of a folder, at any depth."""
    # In the order of paths, of which texts are not: "a-b/c" comes after "a/c".
    return list(map(Path, sorted(_below(os.fspath(folder), passed), key=lambda path: path.split(os.sep))))


def loose_images(folder: Path, passed: PassedOver) -> list[Path]:
    """List the images that lie in a folder itself."""
    return list(map(Path, sorted(_within(os.fspath(folder), [], passed))))


def _below(folder: str, passed: PassedOver) -> Iterator[str]:
    folders: list[str] = []
    yield from _within(folder, folders, passed)
    for path in folders:
        yield from _below(path, passed)


def _within(folder: str, folders: list[str], passed: PassedOver) -> Iterator[str]:
    """Names alone, with no look at files that are called images: there may be millions."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_junk(entry.name):
                continue
            # A link to a folder may lead to where it lies. A pipe or a device is never read to its end.
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif not entry.is_symlink() and not entry.is_file():
                passed["no files"] += 1
            elif is_image(entry.path):
                yield entry.path
            elif _leads_to_folder(entry):
                passed["links to folders"] += 1
            else:
                passed.add(entry.name)
