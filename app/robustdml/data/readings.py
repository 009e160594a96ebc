"""A cache by the content of image files: features, pictures for pages, small grey pictures.

A pack is a file of some hundred images, whole or absent. Where all packs take too much room the oldest are deleted.
"""

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from robustdml.arrays import Floats, Mask, Pixels, Rows, blocks
from robustdml.cache import cache_folder, in_turn, kept_folder, make_private
from robustdml.data.contents import Contents
from robustdml.data.images import as_image, kinds, read_ahead
from robustdml.errors import UsageError, counted, few
from robustdml.plain_files import read_npz, write_npz
from robustdml.progress import OnProgress

RECIPE_VERSION = 1
# Images of a pack. So many packs of fewer bytes are put together.
PACK, MANY_SMALL, SMALL = 256, 16, 2**20
# Gigabytes of all packs, and the variable of another limit.
LIMIT, VARIABLE = 10.0, "ROBUSTDML_CACHE_GB"
# Of more images no pictures are kept: a page decodes again the few that it shows.
MOST_PICTURED = 50_000
# Side of the grey images, by which copies are found.
GREY = 16
# Features of more bytes are mapped from a file rather than held in memory.
_MAPPED = 2**28


@dataclass(frozen=True)
class Reading:
    """How images are read: brought to a square, and through a network where there is one."""

    size: int  # Side of the square
    channels: int = 3
    name: str = "images"  # Of the network
    key: str = ""  # Hash of all that its outputs depend on
    apply: Callable[[Pixels], Floats] | None = None  # From images (B, channels, S, S) to features (B, F)
    batch: int = PACK
    lasting: bool = True  # False where outputs may change while the key does not

    @property
    def folder(self) -> Path:
        """Where the packs are."""
        depends_on = f"{RECIPE_VERSION} {PIL.__version__} {kinds()} {self.channels} {self.key}"
        key = hashlib.blake2b(depends_on.encode(), digest_size=8).hexdigest()
        return kept_folder(self.lasting) / "packs" / f"{self.name.replace('/', '-')}-{self.size}-{key}"


class Kept:
    """Images by their contents, (N,), as far as they were read."""

    def __init__(self, contents: Contents, reading: Reading) -> None:
        self.folder, self.count = reading.folder, len(contents)
        self._unique, self._first, self._which = np.unique(contents, return_index=True, return_inverse=True)

    def found(self, *names: str) -> Iterator[tuple[Rows, Rows, dict[str, NDArray[Any]]]]:
        """Rows in a pack, the first of each content, their places in it, and arrays of the pack; pack by pack."""
        for path in _packs(self.folder):
            if not path.exists() or not len(self._unique):  # Deleted by another process.
                continue
            keys = _read_pack(path, "keys")["keys"]
            place = np.searchsorted(self._unique, keys).clip(max=len(self._unique) - 1)
            here = np.flatnonzero((self._unique[place] == keys) & (keys != b""))
            if len(here):
                arrays = _read_pack(path, *names)
                with suppress(OSError):
                    os.utime(path)
                yield self._first[place[here]], here, arrays

    def spread(self, out: NDArray[Any]) -> None:
        """Fill the rows of copies, (N, …), from the first of each content."""
        copies = np.flatnonzero(self._first[self._which] != np.arange(self.count))
        out[copies] = out[self._first[self._which[copies]]]

    def known(self) -> Mask:
        """Whether each image was read, (N,)."""
        out = np.zeros(self.count, bool)
        for rows, _, _ in self.found():
            out[rows] = True
        self.spread(out)
        return out

    def features(self) -> Floats:
        """Features of images that were all read, (N, F), float16 or float32."""
        out = np.zeros((self.count, 0), np.float16)
        done = np.zeros(self.count, bool)
        for rows, places, arrays in self.found("features"):
            made, done[rows] = arrays["features"], True
            if not out.shape[1] or out.dtype != np.result_type(out, made):
                wider = _room((self.count, made.shape[1]), np.result_type(out, made))
                if out.shape[1]:
                    wider[:] = out
                out = wider
            out[rows] = made[places]
        if done.sum() < len(self._unique):
            raise UsageError(f"{self.folder}: what was kept there has been deleted meanwhile; give the command again")
        self.spread(out)
        return out

    def grey(self) -> Floats:
        """Small grey images, (N, GREY²); 0 of images that were not read."""
        out = np.zeros((self.count, GREY * GREY), np.float16)
        for rows, places, arrays in self.found("grey"):
            out[rows] = arrays["grey"][places]
        self.spread(out)
        return out

    def pictures(self) -> list[bytes]:
        """JPEG files of the images as the network takes them, (N,), empty where none is kept."""
        out = [b""] * self.count
        for rows, places, arrays in self.found("pictures", "ends"):
            ends = [0, *arrays["ends"].tolist()]
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                out[row] = arrays["pictures"][ends[place] : ends[place + 1]].tobytes()
        return [out[first] for first in self._first[self._which].tolist()]


def _room(shape: tuple[int, int], dtype: np.dtype[Any]) -> Floats:
    """Room for features: in memory, or of many in a file without a name."""
    size = shape[0] * shape[1] * dtype.itemsize
    if size < _MAPPED:
        return np.zeros(shape, dtype)
    with TemporaryFile(dir=kept_folder()) as file:
        if hasattr(os, "posix_fallocate"):  # A full disk ends the process where a mapped page has no room.
            os.posix_fallocate(file.fileno(), 0, size)
        return np.asarray(np.memmap(file, dtype, "w+", shape=shape))


def read_images(files: Sequence[Path], contents: Contents, reading: Reading, on_progress: OnProgress) -> dict[int, str]:
    """Read the images that are not known, and give those that cannot be read, by row, with the reason."""
    found, made, broken = _read_missing(files, contents, reading, on_progress)
    if reading.lasting:
        _tally.found += found
        _tally.made += made
    return broken


def features_of(files: Sequence[Path], contents: Contents, reading: Reading, on_progress: OnProgress) -> Floats:
    """Features of images that can be read, float16 where that holds them, (N, F)."""
    # Most often all were read before; another process may have deleted some since.
    _, _, broken = _read_missing(files, contents, reading, on_progress)
    if broken:
        raise UsageError(f"{counted(len(broken), 'image')} can be read no longer: {few([*broken.values()])}")
    return Kept(contents, reading).features()


def _read_missing(
    files: Sequence[Path], contents: Contents, reading: Reading, on_progress: OnProgress
) -> tuple[int, int, dict[int, str]]:
    make_private(reading.folder)
    # Of several processes that need the same images one reads them, and the others wait.
    turn = hashlib.blake2b(contents.tobytes(), digest_size=8).hexdigest()
    with in_turn(reading.folder / f".{turn}.lock"):
        known = Kept(contents, reading).known()
        missing = np.flatnonzero(~known)
        rows = np.sort(missing[np.unique(contents[missing], return_index=True)[1]])
        pending = _Pending(reading, pictured=len(files) <= MOST_PICTURED)
        broken = pending.read(files, contents, rows, on_progress)
        # Copies of what is broken are told by their own names.
        copies = np.setdiff1d(missing[np.isin(contents[missing], contents[[*broken]])], rows)
        broken |= pending.read(files, contents, copies, on_progress)
        pending.write()
    if pending.made:
        _put_together(reading.folder)
        _delete_oldest(reading.folder.parent)
    return int(known.sum()), pending.made, dict(sorted(broken.items()))


@dataclass
class _Pending:
    """Results that are collected until they fill a pack."""

    reading: Reading
    pictured: bool
    made: int = 0
    keys: list[bytes] = field(default_factory=list)
    features: list[Floats] = field(default_factory=list)
    grey: list[Floats] = field(default_factory=list)
    pictures: list[bytes] = field(default_factory=list)

    def read(self, files: Sequence[Path], contents: Contents, rows: Rows, on_progress: OnProgress) -> dict[int, str]:
        """Read some rows; also returns the rows that cannot be read, with the reason."""
        reading, broken = self.reading, dict[int, str]()
        batches = [rows[block].tolist() for block in blocks(len(rows), reading.batch)]
        decoded = read_ahead(files, batches, reading.size, reading.channels)
        for number, (batch, images) in enumerate(zip(batches, decoded, strict=True)):
            on_progress("features" if reading.apply else "checking images", number * reading.batch, len(rows))
            read: list[tuple[bytes, Pixels]] = []
            for row, one in zip(batch, images, strict=True):
                if isinstance(one, str):
                    broken[row] = one
                elif contents[row] == b"":
                    broken[row] = f"{files[row]} (it could not be read at first)"
                else:
                    read.append((contents[row], one))
            if read:
                self.add([key for key, _ in read], np.stack([one for _, one in read]))
        return broken

    def add(self, keys: list[bytes], images: Pixels) -> None:
        """Add images of some contents, (B, channels, S, S)."""
        apply = self.reading.apply
        self.features.append(np.zeros((len(keys), 0), np.float16) if apply is None else apply(images))
        self.grey.append(grey_images(images))
        self.pictures += [_picture(one) if self.pictured else b"" for one in images]
        self.keys += keys
        if len(self.keys) >= PACK:
            self.write()

    def write(self) -> None:
        """Write the collected results as a pack."""
        if self.keys:
            lengths = np.array([len(one) for one in self.pictures])
            pictures = np.frombuffer(b"".join(self.pictures), np.uint8)
            features, grey = np.concatenate(self.features), np.concatenate(self.grey)
            _write_pack(self.reading.folder, np.array(self.keys, "S16"), features, grey, pictures, lengths)
            self.made += len(self.keys)
            self.keys, self.features, self.grey, self.pictures = [], [], [], []


def grey_images(images: Pixels) -> Floats:
    """Means over a grid of squares, which overlap where the side is no multiple, float32, (B, GREY²)."""
    grey = images.mean(axis=1, dtype=np.float32)
    side = grey.shape[1]
    ends = [(side * one // GREY, -(-side * (one + 1) // GREY)) for one in range(GREY)]
    bands = np.stack([grey[:, low:high].mean(axis=1) for low, high in ends], axis=1)
    return np.stack([bands[:, :, low:high].mean(axis=2) for low, high in ends], axis=2).reshape(len(images), -1)


def _picture(image: Pixels) -> bytes:
    file = io.BytesIO()
    as_image(image).save(file, "JPEG", quality=85)
    return file.getvalue()


def _write_pack(folder: Path, keys: Contents, features: Floats, grey: Floats, pictures: Pixels, lengths: Rows) -> Path:
    largest = np.abs(features).max(axis=1, initial=0)
    # Half of the room, where 16 bits hold the numbers.
    halves = ((largest <= 65504) & ((largest == 0) | (largest >= 2**-14))).all()
    path = folder / f"{hashlib.blake2b(keys.tobytes(), digest_size=12).hexdigest()}.npz"
    kept = {"features": features.astype(np.float16 if halves else np.float32), "grey": grey.astype(np.float16)}
    write_npz(path, keys=keys, **kept, pictures=pictures, ends=np.cumsum(lengths))
    return path


def _packs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npz"))


def _read_pack(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    try:
        return read_npz(path, names)
    except UsageError as error:
        raise UsageError(f"{error}; delete it, and it is made again") from error


def _put_together(folder: Path) -> None:
    """Make one pack of many small ones: all are opened each time."""
    small = [path for path in _packs(folder) if path.stat().st_size < SMALL]
    if len(small) < MANY_SMALL:
        return
    names = ("keys", "features", "grey", "pictures", "ends")
    parts = [[one[name] for name in names] for one in (_read_pack(path, *names) for path in small)]
    keys, features, grey, pictures = (np.concatenate(arrays) for arrays in list(zip(*parts, strict=True))[:4])
    lengths = np.concatenate([np.diff(part[4], prepend=0) for part in parts])
    made = _write_pack(folder, keys, features, grey, pictures, lengths)
    for path in small:
        if path != made:
            path.unlink(missing_ok=True)


def _limit() -> float:
    """Bytes that all packs may take."""
    given = os.environ.get(VARIABLE, "")
    try:
        return 1e9 * (float(given) if given else LIMIT)
    except ValueError as error:
        raise UsageError(f"{VARIABLE}={given!r}: expected a number of gigabytes, such as {LIMIT:g}") from error


def _sizes(folder: Path) -> dict[Path, os.stat_result]:
    """All packs of all networks with their sizes and times, those used last at the end."""
    found = {}
    for path in folder.glob("*/*.npz"):
        with suppress(FileNotFoundError):
            found[path] = path.stat()
    return dict(sorted(found.items(), key=lambda one: one[1].st_mtime))


# Packs used later are never deleted by this process.
_BEGAN = time.time()


def _delete_oldest(folder: Path) -> None:
    """Delete packs that were used longest ago while all take too much room; never one that this process has used."""
    packs = _sizes(folder)
    size = sum(one.st_size for one in packs.values())
    for path, one in packs.items():
        if size <= _limit() or one.st_mtime >= _BEGAN:
            break
        path.unlink(missing_ok=True)
        size -= one.st_size


@dataclass
class _Tally:
    """Images that this process has read, and those that it found."""

    made: int = 0
    found: int = 0


_tally = _Tally()


def what_is_kept() -> str | None:
    """Say how many images were read and found since the last call, and what room all take; None of no images."""
    made, found = _tally.made, _tally.found
    _tally.made = _tally.found = 0
    if not made + found or kept_folder() != cache_folder():
        return None
    folder = cache_folder() / "packs"
    size = sum(one.st_size for one in _sizes(folder).values())
    room = f"{size / 1e6:,.1f} MB of at most {_limit() / 1e9:,g} GB"
    return f"{counted(made, 'image')} read, and {found:,} found in {folder} ({room}; --no-cache keeps none)"
