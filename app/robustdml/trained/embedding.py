"""Images or features on a disk, and their embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from robustdml.arrays import Floats, Ints, Singles, blocks
from robustdml.data import Split
from robustdml.data.dataset import Samples
from robustdml.data.features import TEST, TRAIN, load_splits
from robustdml.data.files import PassedOver, image_files, image_suffixes, is_image, loose_images
from robustdml.data.folders import listed_parts
from robustdml.data.image_files import ImageFiles
from robustdml.data.images import check_left_out
from robustdml.data.lists import ANY_COLUMNS, LISTS, Columns, is_list, metadata_of
from robustdml.data.load import existing
from robustdml.data.named import NAMED
from robustdml.data.readings import features_of, read_images
from robustdml.errors import UsageError, counted, expanded
from robustdml.networks.models import unit_length
from robustdml.networks.stored_features import reading_of
from robustdml.progress import OnProgress
from robustdml.trained.embedder import ModelCard, TrainedEmbedder

# Rows of features at a time.
_BLOCK = 4096
EXPECTED = (
    "a folder of class folders (with train and test in it: both parts), a folder of images, an image, a list of images "
    f"({LISTS} with the columns path and label, or a text file with a path a line), or an .npz file of "
    "features where the model takes features"
)


def find_samples(source: str, card: ModelCard, columns: Columns = ANY_COLUMNS) -> dict[str, Samples]:
    """Find the samples to embed."""
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
    if loose and loose == image_files(path, passed) and not (columns.pattern or metadata_of(path)):
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
    """Embed all samples that can be read; after an interruption the next call goes on with the cached ones."""
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size}: expected at least 1")
    check_left_out(len(samples), samples.left_out, (), skip_broken)
    if not samples.files:
        on_progress(f"embedding {samples.source}", 0, len(samples))
        return Embedded(samples, embedder.embed(np.asarray(samples.inputs), batch_size).numpy())
    network, card = embedder.network, embedder.card
    reading = reading_of(card.backbone, network.backbone, card.input_shape, embedder.device, batch_size)
    images = ImageFiles(samples.files, card.image_size, card.channels, reading)
    broken = read_images(images.files, images.contents, reading, on_progress)
    check_left_out(len(samples), samples.left_out, list(broken.values()), skip_broken)
    left_out = (*samples.loose, *samples.left_out, *broken.values())
    good, samples = np.delete(np.arange(len(samples)), list(broken)), replace(samples, inputs=images, left_out=left_out)
    if broken:
        samples = samples.take(good, samples.labels[good], samples.class_names)
    assert isinstance(samples.inputs, ImageFiles)
    features = features_of(samples.inputs.files, samples.inputs.contents, reading, on_progress)
    embeddings = _embedded(embedder, features)
    bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if len(bad):
        first = samples.files[int(bad[0])]
        raise UsageError(f"{counted(len(bad), 'embedding')} with NaN or infinity, the first is of {first}")
    return Embedded(samples, embeddings)


@torch.no_grad()
def _embedded(embedder: TrainedEmbedder, features: Floats) -> Singles:
    """Embeddings of the backbone's features."""
    out = np.empty((len(features), embedder.embedding_size), np.float32)
    for block in blocks(len(features), _BLOCK):
        rows = torch.from_numpy(features[block].astype(np.float32)).to(embedder.device)
        out[block] = unit_length(embedder.network.head(rows)).cpu().numpy()
    return out
