"""Drawings of many characters in every typeface, made once on all cores and kept in a memory-mapped file."""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from experiments.data.characters.typefaces import Pen, Typeface, font_files, tells_characters_apart, typefaces
from robustdml.cache import cache_folder, make_once, read_array, write_whole
from robustdml.data.named import SIDE, Class, distinct, distort
from robustdml.progress import OnProgress, progress_bar

RECIPE_VERSION = 1
POINT_SIZE = 28
# Classes that a worker makes at a time.
BLOCK = 64

# A code point, and the numbers of the typefaces that have it.
_Task = tuple[int, NDArray[np.int64]]

# Set once in each worker process.
_pens: list[Pen]
_atlas: "Atlas"


@dataclass(frozen=True)
class Atlas:
    """Which characters are drawn, and how many drawings of each are kept."""

    name: str  # Of the data
    ranges: tuple[tuple[int, int], ...]  # Code points, first and last
    probes: str  # Font files with one of these characters are searched
    # Drawings of a class. Classes with fewer are left out; of more drawings the least similar are kept.
    at_least: int = 10
    at_most: int = 12
    alike: float = 0.97  # Drawings with this cosine or more count as one
    # Whether each drawing gets a small random affine map, the same on every machine.
    distorted: bool = False

    def key(self) -> str:
        """Hash of all that the drawings depend on: recipe, font files, Pillow."""
        files = [(path.name, path.stat().st_size) for path in font_files(self.probes)]
        told = json.dumps([RECIPE_VERSION, SIDE, POINT_SIZE, PIL.__version__, asdict(self), files])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def load(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Images, uint8 (N, 1, side, side), and code points, int64 (N,); made at the first call, in minutes."""
        images, codes = (cache_folder() / f"{self.name}-{self.key()}{end}" for end in (".images", ".npy"))

        def make() -> None:
            with progress_bar(self.name) as report:
                _make(self, images, codes, report)

        make_once(make, images, codes)
        code_points: NDArray[np.int64] = read_array(codes)
        if not len(code_points):  # An empty file cannot be mapped.
            return np.empty((0, 1, SIDE, SIDE), np.uint8), code_points
        return np.memmap(images, np.uint8, "r", shape=(len(code_points), 1, SIDE, SIDE)), code_points


def least_alike(images: Sequence[NDArray[np.uint8]], at_most: int, alike: float) -> list[int]:
    """Greedy choice: each next drawing has the smallest maximal cosine with those chosen."""
    pixels = np.stack(images).reshape(len(images), -1).astype(np.float32)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    similarity = pixels @ pixels.T
    chosen = [int(similarity.sum(1).argmax())]
    nearest = similarity[chosen[0]]
    while len(chosen) < at_most and nearest.min() < alike:
        chosen.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, similarity[chosen[-1]])
    return chosen


def _make(atlas: Atlas, images_path: Path, codes_path: Path, report: OnProgress) -> None:
    report("typefaces", 0, 0)
    wanted = frozenset(code for first, last in atlas.ranges for code in range(first, last + 1))
    found = [face for face in typefaces(font_files(atlas.probes), wanted) if tells_characters_apart(face, POINT_SIZE)]
    codes: list[int] = []

    def write(file: BinaryIO) -> None:
        for code, images in distinct(_draw_all(atlas, found, report)):
            codes.extend([code] * len(images))
            random = np.random.default_rng((RECIPE_VERSION, code))
            kept = [distort(image, random) for image in images] if atlas.distorted else images
            file.write(np.stack(kept).tobytes())

    write_whole(images_path, write)
    # Written last: if it exists, both do.
    write_whole(codes_path, lambda file: np.save(file, np.array(codes, dtype=np.int64)))


def _draw_all(atlas: Atlas, found: Sequence[Typeface], report: OnProgress) -> Iterator[Class]:
    """Draw the characters that at least `at_least` faces have, in random order."""
    tasks = _tasks(found, atlas.at_least)
    blocks = [tasks[start : start + BLOCK] for start in range(0, len(tasks), BLOCK)]
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start, initargs=(atlas, found)
    )
    with pool:
        for done, block in enumerate(pool.map(_draw_block, blocks)):
            report("drawing characters", done * BLOCK, len(tasks))
            yield from block


def _tasks(found: Sequence[Typeface], at_least: int) -> list[_Task]:
    codes = np.concatenate([face.code_points for face in found] or [np.empty(0, np.int64)])
    numbers = np.repeat(np.arange(len(found)), [len(face.code_points) for face in found])
    order = np.argsort(codes, kind="stable")
    every, starts = np.unique(codes[order], return_index=True)
    tasks = list(zip(every.tolist(), np.split(numbers[order], starts[1:]), strict=False))
    random = np.random.default_rng(0).permutation(len(tasks))
    return [tasks[place] for place in random if len(tasks[place][1]) >= at_least]


def _start(atlas: Atlas, found: Sequence[Typeface]) -> None:
    global _atlas, _pens
    _atlas = atlas
    # One process a core: more threads would compete for the cores.
    threadpool_limits(1)
    _pens = [Pen(face, POINT_SIZE) for face in found]


def _draw_block(tasks: Sequence[_Task]) -> list[Class]:
    return [(code, images) for code, numbers in tasks if (images := _draw_class(code, numbers))]


def _draw_class(code: int, numbers: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """The kept drawings of a character; none if there are too few."""
    drawings: dict[bytes, NDArray[np.uint8]] = {}
    for number in numbers:
        if (image := _pens[number].draw(code)) is not None:
            drawings.setdefault(image.tobytes(), image)
    images = list(drawings.values())
    if len(images) < _atlas.at_least:
        return []
    chosen = [images[place] for place in least_alike(images, _atlas.at_most, _atlas.alike)]
    return chosen if len(chosen) >= _atlas.at_least else []
