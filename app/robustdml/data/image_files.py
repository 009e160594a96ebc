"""Images that stay in their files: decoded when a batch needs them."""

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from robustdml.arrays import Array, Floats, Pixels, Rows, blocks
from robustdml.data.contents import Contents, contents_of
from robustdml.data.images import as_image, decode, read_ahead, to_square
from robustdml.data.readings import Kept, Reading, grey_images
from robustdml.errors import UsageError, counted, few

DEFAULT_IMAGE_SIZE = 224


class ImageFiles:
    """Images in files, uint8 (N, channels, size, size): indexing decodes them.

    ``read`` says how they were read before, for what is kept of that.
    """

    ndim, dtype = 4, np.dtype(np.uint8)

    def __init__(
        self, files: Sequence[Path], size: int = DEFAULT_IMAGE_SIZE, channels: int = 3, read: Reading | None = None
    ) -> None:
        self.files, self.shape = files, (len(files), channels, size, size)
        self.read = read or Reading(size, channels)

    @cached_property
    def contents(self) -> Contents:
        """Digests of the files, (N,)."""
        return contents_of(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: slice | Rows | int) -> Pixels:
        if isinstance(key, int | np.integer):
            return np.asarray(self[np.array([key])][0])
        return next(self.batches([key]))

    def take(self, rows: Rows) -> "ImageFiles":
        """Take some images; none is decoded."""
        taken = ImageFiles([self.files[row] for row in rows], self.shape[2], self.shape[1], self.read)
        if "contents" in self.__dict__:
            taken.contents = self.contents[rows]
        return taken

    def batches(self, chosen: Iterable[slice | Rows]) -> Iterator[Pixels]:
        """Decode batches, each while the one before is used."""
        every = range(len(self))
        rows = (every[key] if isinstance(key, slice) else key.tolist() for key in chosen)
        for images in read_ahead(self.files, rows, self.shape[2], self.shape[1]):
            if broken := [one for one in images if isinstance(one, str)]:
                raise UsageError(f"{counted(len(broken), 'image')} can be read no longer: {few(broken)}")
            yield np.stack(images) if images else np.zeros((0, *self.shape[1:]), np.uint8)


# What a split has of its samples.
Inputs: TypeAlias = NDArray[Any] | ImageFiles


def batches_of(inputs: Inputs, chosen: Iterable[slice | Rows]) -> Iterator[Array]:
    """Give batch after batch; files are decoded a batch ahead."""
    return inputs.batches(chosen) if isinstance(inputs, ImageFiles) else (inputs[key] for key in chosen)


def copies_between(train: Inputs, test: Inputs) -> list[str]:
    """Say which test images are copies of training images, byte for byte; none of arrays."""
    if not isinstance(train, ImageFiles) or not isinstance(test, ImageFiles):
        return []
    files = dict(zip(train.contents.tolist()[::-1], train.files[::-1], strict=True))
    pairs = zip(test.files, test.contents.tolist(), strict=True)
    found = [f"{file} (of {files[content]})" for file, content in pairs if content in files]
    return [f"{counted(len(found), 'test image')} copied from the training part: {few(sorted(found))}"] if found else []


def small_grey(inputs: Inputs) -> Floats:
    """Small grey images, (N, GREY²), of images in files as they were read, and of others now."""
    if isinstance(inputs, ImageFiles):
        return Kept(inputs.contents, inputs.read).grey()
    return np.concatenate([grey_images(np.asarray(inputs[block])) for block in blocks(len(inputs), 256)])


def shown(inputs: Inputs, rows: Sequence[int], most: int) -> Iterator[Pixels | None]:
    """Images for a page, of at most so many pixels a side, (channels, S, S) each; None of a file that is gone."""
    channels, side = inputs.shape[1], min(most, *inputs.shape[2:])
    if not isinstance(inputs, ImageFiles):
        yield from (to_square(as_image(inputs[row]), side, channels) for row in rows)
        return
    for row, content in zip(rows, Kept(inputs.contents[[*rows]], inputs.read).pictures(), strict=True):
        if content:
            with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
                yield to_square(image, side, channels)
            continue
        found = decode(inputs.files[row], side, channels)
        yield None if isinstance(found, str) else found
