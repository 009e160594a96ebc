"""Embedding many samples: files are decoded a batch ahead, and those that cannot be read are named together."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from robustdml.data.images import decode, few
from robustdml.errors import UsageError
from robustdml.progress import OnProgress, silent
from robustdml.trained.embedder import BATCH_SIZE, TrainedEmbedder
from robustdml.trained.model_file import ModelCard
from robustdml.trained.samples import Samples


@dataclass(frozen=True)
class Embedded:
    """Embeddings, and what they are of."""

    embeddings: NDArray[np.float32]  # float32, (N, D), rows of length 1
    rows: NDArray[np.int64]  # Places of the N in what was to be embedded, int64, (N,), ascending
    broken: tuple[str, ...]  # Images that could not be read, each with the reason


def embed_samples(
    embedder: TrainedEmbedder,
    samples: Samples,
    *,
    batch_size: int = BATCH_SIZE,
    skip_broken: bool = False,
    on_progress: OnProgress = silent,
) -> Embedded:
    """Embed all samples."""
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size}: expected at least 1")
    broken: list[str] = []
    parts, rows = [torch.zeros(0, embedder.embedding_size)], [np.zeros(0, np.int64)]
    for start, batch in _batches(samples, embedder.card, batch_size):
        on_progress(f"embedding {samples.name}", start, len(samples))
        broken += [pixels for pixels in batch if isinstance(pixels, str)]
        good = [place for place, pixels in enumerate(batch) if not isinstance(pixels, str)]
        # Once nothing will come of it, files are only looked at, so that all that are broken are named at once.
        if good and (skip_broken or not broken):
            parts.append(embedder.embed(np.stack([batch[place] for place in good]), batch_size))
            rows.append(start + np.array(good))
    if broken and not skip_broken:
        raise UsageError(f"{len(broken)} images cannot be read; repair them or skip broken ones: {few(broken)}")
    if len(broken) == len(samples):
        raise UsageError(f"{samples.name}: none of the {len(samples)} images can be read: {few(broken)}")
    return Embedded(torch.cat(parts).numpy(), np.concatenate(rows), tuple(broken))


def _batches(
    samples: Samples, card: ModelCard, batch_size: int
) -> Iterator[tuple[int, list[NDArray[np.generic] | str]]]:
    """Place of the first sample, and the samples of a batch; a text instead of one that cannot be read."""
    starts = range(0, len(samples), batch_size)
    if not isinstance(samples.inputs, list):
        for start in starts:
            yield start, list(samples.inputs[start : start + batch_size])
        return
    files = samples.inputs

    def begin(start: int) -> list[Future[NDArray[np.uint8] | str]]:
        return [pool.submit(_decode, file, card) for file in files[start : start + batch_size]]

    with ThreadPoolExecutor() as pool:
        ahead = begin(0)
        for start in starts:
            now, ahead = ahead, begin(start + batch_size)
            yield start, [future.result() for future in now]


def _decode(file: Path, card: ModelCard) -> NDArray[np.uint8] | str:
    return decode(file, card.image_size, card.channels)
