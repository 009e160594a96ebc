"""Images or features on a disk, and their embeddings: files are decoded a batch ahead."""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robustdml.arrays import Floats, Ints, Singles
from robustdml.cache import NAMES, begun_file, take_away
from robustdml.data import Split
from robustdml.data.dataset import Samples
from robustdml.data.features import TEST, TRAIN, load_splits
from robustdml.data.files import PassedOver, image_files, image_suffixes, is_image, loose_images
from robustdml.data.folders import listed_parts
from robustdml.data.image_files import ImageFiles
from robustdml.data.images import check_left_out, decode, read_ahead
from robustdml.data.lists import ANY_COLUMNS, LISTS, Columns, is_list, metadata_of
from robustdml.data.load import existing
from robustdml.data.named import NAMED
from robustdml.errors import UsageError, counted, expanded, say
from robustdml.networks.backbones.choice import is_own_code
from robustdml.networks.models import gathered
from robustdml.networks.stored_features import RowsFrom, map_features, store_rows, stored_as
from robustdml.progress import OnProgress
from robustdml.trained.embedder import ModelCard, TrainedEmbedder

# So many files are embedded in a minute or more: from here on embeddings are kept in the cache folder as they come.
MANY = 1024
EXPECTED = (
    "a folder of class folders (with train and test in it: both parts), a folder of images, an image, a list of images "
    f"({LISTS} with the columns path and label, or a text file with a path a line), or an .npz file of "
    "features where the model takes features"
)


def find_samples(source: str, card: ModelCard, columns: Columns = ANY_COLUMNS) -> dict[str, Samples]:
    """Find what there is to embed."""
    if source in NAMED:
        named = NAMED[source].load()
        return {TRAIN: _of_split(source, named.train, card), TEST: _of_split(source, named.test, card)}
    path = existing(source, EXPECTED)
    if path.suffix.lower() == ".npz":
        splits = load_splits(path, need_labels=False)
        return {part: _of_split(str(path), split, card) for part, split in splits.items()}
    if not card.takes_images:
        raise UsageError(f"{source}: the model takes {card.takes}; give an .npz file of them")
    if not path.is_dir() and not is_list(path) and is_image(path):
        return {TRAIN: _without_labels(path, [path])}
    if not path.is_dir() and not is_list(path):
        return {TRAIN: _of_paths(path)}
    passed = PassedOver()
    loose = loose_images(path, PassedOver()) if path.is_dir() else []
    # Beside class folders a few images that lie about take no labels away.
    if loose and loose == image_files(path, passed) and not metadata_of(path):
        return {TRAIN: replace(_without_labels(path, loose), notes=tuple(passed.notes()))}
    parts = listed_parts(path, columns, need_labels=False)
    return {TEST if part == "test" else TRAIN: one for part, one in parts.items()}


def _without_labels(source: Path, files: list[Path]) -> Samples:
    return Samples(ImageFiles(files), np.zeros(len(files), np.int64), (), source=str(source))


def _of_paths(path: Path) -> Samples:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        kinds = ", ".join(sorted(image_suffixes()))
        raise UsageError(f"{path}: neither a list of images in UTF-8 nor a file of a known kind ({kinds})") from error
    if not lines:
        raise UsageError(f"{path}: an empty list; expected a path of an image a line")
    return _without_labels(path, [path.parent / expanded(line.strip()) for line in lines])


def _of_split(name: str, split: Split, card: ModelCard) -> Samples:
    if split.inputs.shape[1:] != card.input_shape:
        shape = split.inputs.shape[1:]
        held = counted(shape[0], "number") if len(shape) == 1 else f"{'×'.join(map(str, shape))} numbers"
        raise UsageError(f"{name}: its samples are of {held}, and the model takes {card.takes}")
    return Samples(np.asarray(split.inputs), split.labels, split.class_names, source=name)


@dataclass(frozen=True)
class Embedded:
    """The samples that could be read, with their embeddings."""

    samples: Samples
    embeddings: Singles  # (N, D), rows of length 1

    @property
    def names(self) -> list[str]:
        """Files, or places among the samples, (N,)."""
        return [str(one) for one in self.samples.files or range(len(self.samples))]

    def class_of(self, place: int) -> str | None:
        """Class of a sample, if it is known."""
        names = self.samples.class_names
        return names[self.samples.labels[place]] if names else None

    def numbered(self, names: Sequence[str]) -> Ints:
        """Labels as places among all names of classes, (N,)."""
        if not self.samples.class_names:
            raise UsageError(
                f"{self.samples.source}: has no labels, and without them there is nothing to score; give a folder of "
                "class folders, or a list with the columns path and label"
            )
        numbers = {name: number for number, name in enumerate(names)}
        own = np.array([numbers[name] for name in self.samples.class_names], dtype=np.int64)
        return own[self.samples.labels]


def embed_samples(
    embedder: TrainedEmbedder, samples: Samples, batch_size: int, skip_broken: bool, on_progress: OnProgress
) -> Embedded:
    """Embed all samples that can be read; of many files, an interrupted call leaves what it has made to the next."""
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size}: expected at least 1")
    check_left_out(len(samples), samples.left_out, (), skip_broken)
    files, card = samples.files, embedder.card
    rows = partial(_batches, embedder, samples, batch_size, on_progress)
    # What the user's own code does may change while its name and weights do not.
    if len(files) < MANY or is_own_code(card.backbone):
        embeddings = gathered(rows(0), len(samples))
    else:
        embeddings = _stored(embedder, samples, batch_size, rows)
    bad, broken = np.isnan(embeddings[:, 0]), []
    for file in (files[row] for row in np.flatnonzero(bad).tolist()):
        again = decode(file, card.image_size, card.channels)
        broken.append(again if isinstance(again, str) else f"{file} (it could not be read)")
    check_left_out(len(samples), samples.left_out, broken, skip_broken)
    left_out, good = (*samples.loose, *samples.left_out, *broken), np.flatnonzero(~bad)
    if broken:
        samples, embeddings = samples.take(good, samples.labels[good], samples.class_names), embeddings[good]
    return Embedded(replace(samples, left_out=left_out), embeddings)


def _stored(embedder: TrainedEmbedder, samples: Samples, size: int, rows: RowsFrom) -> Floats:
    """Embeddings in the cache folder, mapped; says that they go on, or that they cannot."""
    images = ImageFiles(samples.files, embedder.card.image_size, embedder.card.channels)
    place = hashlib.blake2b(os.path.abspath(samples.source).encode("utf-8", NAMES), digest_size=6).hexdigest()
    path = stored_as(f"embedded-{place}", images, embedder, embedder.device)
    if begun_file(path).exists():
        say(f"{samples.source}: goes on with what a call before has embedded", sys.stderr)
    elif [other for other in path.parent.glob(f".embedded-{place}-*.begun") if take_away(other)]:
        changed = "images or model have changed since a call that did not end"
        say(f"{samples.source}: {changed}; all are embedded anew", sys.stderr)
    store_rows(path, len(images), np.float32, size, rows)
    return map_features(path)


def _batches(
    embedder: TrainedEmbedder, samples: Samples, batch_size: int, on_progress: OnProgress, first: int
) -> Iterator[Singles]:
    """Embed batch after batch, (B, D); the row of an image that cannot be read is NaN."""
    inputs, card = samples.inputs, embedder.card
    rows = [range(start, min(start + batch_size, len(inputs))) for start in range(first, len(inputs), batch_size)]
    if samples.files:
        batches: Iterator[Sequence[Any]] = read_ahead(samples.files, rows, card.image_size, card.channels)
    else:
        batches = (list(inputs[batch.start : batch.stop]) for batch in rows)
    for batch, pixels in zip(rows, batches, strict=True):
        on_progress(f"embedding {samples.source}", batch.start, len(inputs))
        embeddings = np.full((len(batch), embedder.embedding_size), np.nan, np.float32)
        good = [place for place, one in enumerate(pixels) if not isinstance(one, str)]
        if good:
            embeddings[good] = embedder.embed(np.stack([pixels[place] for place in good]), batch_size)
        yield embeddings
