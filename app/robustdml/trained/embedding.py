"""Images or features on a disk, and their embeddings: files are decoded a batch ahead."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustdml.data import Split
from robustdml.data.features import TEST, TRAIN, load_splits
from robustdml.data.folders import PARTS, is_list, listed_parts, loose_images
from robustdml.data.images import SUFFIXES, check_left_out, image_files, is_image, read_ahead
from robustdml.data.named import NAMED
from robustdml.errors import UsageError, expanded
from robustdml.progress import OnProgress, silent
from robustdml.trained.embedder import BATCH_SIZE, TrainedEmbedder
from robustdml.trained.model_file import ModelCard


@dataclass(frozen=True)
class Samples:
    """Samples of one kind."""

    name: str  # What messages call them
    inputs: list[Path] | NDArray[np.generic]  # Files of images; or images or features, as in `Split`
    labels: NDArray[np.int64] | None = None  # int64, (N,), values 0..C-1
    class_names: tuple[str, ...] = ()  # C names; empty without labels
    loose: tuple[str, ...] = ()  # Images beside the class folders, which are left out, with the reason
    left_out: tuple[str, ...] = ()  # Rows of a list that lack a path or a label, with the reason

    def __len__(self) -> int:
        return len(self.inputs)


def find_samples(source: str, card: ModelCard) -> dict[str, Samples]:
    """Find what there is to embed."""
    if source in NAMED:
        named = NAMED[source].load()
        return {TRAIN: _of_split(source, named.train, card), TEST: _of_split(source, named.test, card)}
    path = expanded(source)
    if not path.exists():
        raise UsageError(f"{source}: no such file or folder")
    if path.suffix.lower() == ".npz":
        splits = load_splits(path, need_labels=False)
        return {part: _of_split(str(path), split, card) for part, split in splits.items()}
    if not card.takes_images:
        raise UsageError(f"{source}: the model takes {card.takes}; give an .npz file of them")
    if is_image(path):
        return {TRAIN: Samples(str(path), [path])}
    if not path.is_dir() and not is_list(path):
        return {TRAIN: _of_paths(path)}
    loose = loose_images(path) if path.is_dir() else []
    # Beside class folders a few images that lie about take no labels away.
    if loose and loose == image_files(path):
        return {TRAIN: Samples(str(path), loose)}
    return {
        TEST if part == PARTS[1] else TRAIN: Samples(
            str(path / part), one.files, one.labels, one.class_names, tuple(one.loose), tuple(one.left_out)
        )
        for part, one in listed_parts(path).items()
    }


def _of_paths(path: Path) -> Samples:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        kinds = ", ".join(sorted(SUFFIXES))
        raise UsageError(f"{path}: neither a list of images in UTF-8 nor a file of a known kind ({kinds})") from error
    if not lines:
        raise UsageError(f"{path}: an empty list; expected a path of an image a line")
    return Samples(str(path), [path.parent / expanded(line.strip()) for line in lines])


def _of_split(name: str, split: Split, card: ModelCard) -> Samples:
    if split.inputs.shape[1:] != card.input_shape:
        shape = "×".join(map(str, split.inputs.shape[1:]))
        raise UsageError(f"{name}: its samples are {shape}, and the model takes {card.takes}")
    return Samples(name, np.asarray(split.inputs), split.labels if split.class_names else None, split.class_names)


@dataclass(frozen=True)
class Embedded:
    """Samples with their embeddings."""

    samples: Samples
    embeddings: NDArray[np.float32]  # (N, D), rows of length 1
    rows: NDArray[np.int64]  # Which of the samples they are of, (N,)
    left_out: list[str]  # With the reason

    @property
    def names(self) -> list[str]:
        """Files, or places among the samples, (N,)."""
        inputs = self.samples.inputs
        return [str(inputs[row]) if isinstance(inputs, list) else str(row) for row in self.rows]

    def class_of(self, place: int) -> str | None:
        """Class of a sample, if it is known."""
        labels = self.samples.labels
        return None if labels is None else self.samples.class_names[labels[self.rows[place]]]

    def numbered(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Labels as places among all names of classes, (N,)."""
        if self.samples.labels is None:
            raise UsageError(
                f"{self.samples.name}: has no labels, and without them there is nothing to score; give a folder of "
                "class folders, or a list with the columns path and label"
            )
        numbers = {name: number for number, name in enumerate(names)}
        own = np.array([numbers[name] for name in self.samples.class_names], dtype=np.int64)
        return own[self.samples.labels[self.rows]]


def embed_samples(
    embedder: TrainedEmbedder,
    samples: Samples,
    *,
    batch_size: int = BATCH_SIZE,
    skip_broken: bool = False,
    on_progress: OnProgress = silent,
) -> Embedded:
    """Embed all samples that can be read."""
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size}: expected at least 1")
    check_left_out(len(samples), samples.left_out, (), skip_broken)
    broken: list[str] = []
    # One array from the start: put together at the end, parts would take the memory twice.
    embeddings, rows = np.empty((len(samples), embedder.embedding_size), np.float32), [np.zeros(0, np.int64)]
    count = 0
    for start, batch in _batches(samples, embedder.card, batch_size):
        on_progress(f"embedding {samples.name}", start, len(samples))
        broken += [pixels for pixels in batch if isinstance(pixels, str)]
        good = [place for place, pixels in enumerate(batch) if not isinstance(pixels, str)]
        # Once nothing will come of it, files are only looked at, so that all that are broken are named at once.
        if good and (skip_broken or not broken):
            rows.append(start + np.array(good))
            embeddings[count : count + len(good)] = embedder.embed(
                np.stack([batch[place] for place in good]), batch_size
            )
            count += len(good)
    check_left_out(len(samples), samples.left_out, broken, skip_broken)
    left_out = [*samples.loose, *samples.left_out, *broken]
    return Embedded(samples, embeddings[:count], np.concatenate(rows), left_out)


def _batches(
    samples: Samples, card: ModelCard, batch_size: int
) -> Iterator[tuple[int, Sequence[NDArray[np.generic] | str]]]:
    """Place of the first sample, and the samples of a batch; a text instead of one that cannot be read."""
    starts = range(0, len(samples), batch_size)
    if not isinstance(samples.inputs, list):
        for start in starts:
            yield start, list(samples.inputs[start : start + batch_size])
        return
    rows = [range(start, min(start + batch_size, len(samples))) for start in starts]
    yield from zip(starts, read_ahead(samples.inputs, rows, card.image_size, card.channels), strict=True)
