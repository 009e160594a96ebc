"""Text embeddings that need no download: hashed character n-grams, and names for Glyphs by what they look like."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import normalize

from robustdml.cache import cache_folder, make_once, read_array, write_whole
from robustdml.data import Split
from robustdml.data.named.glyphs import glyphs_key, load_pretraining_glyphs
from robustdml.networks.models import apply_in_batches
from robustdml.networks.pretraining import RECIPE_VERSION, load_pretrained_cnn
from robustdml.progress import OnProgress, silent
from robustdml_ops.ops import nearest

SIZE = 512
NGRAMS = (2, 4)
NAMES_PER_SAMPLE = 5


def hashed_ngrams(texts: Sequence[str], size: int = SIZE) -> NDArray[np.float32]:
    """Embed texts by the hashed character n-grams of their words, rows of length 1."""
    vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=NGRAMS, n_features=size, norm="l2")
    embedded: NDArray[np.float32] = vectorizer.transform(texts).toarray().astype(np.float32)
    return embedded


@dataclass(frozen=True)
class Guidance:
    """What a classifier would call each sample, in the language of texts."""

    embeddings: NDArray[np.float32]  # Of all names, float32, (names, d)
    names: NDArray[np.int64]  # Which k of them fit each sample best, best first, int64, (N, k)


def name_by_looks(features: NDArray[np.float32], on_progress: OnProgress = silent) -> Guidance:
    """Give each sample of Glyphs the names of the pretraining classes with the nearest mean features."""
    pretraining = load_pretraining_glyphs()
    path = cache_folder() / f"class-means-{glyphs_key()}-{RECIPE_VERSION}.npy"

    def make() -> None:
        on_progress("features of the pretraining characters", 0, 0)
        means = _class_means(pretraining, on_progress)
        write_whole(path, lambda file: np.save(file, means))

    make_once(make, path)
    alike = nearest(torch.from_numpy(features), torch.from_numpy(read_array(path)), NAMES_PER_SAMPLE)
    names = [name.partition(" ")[2] for name in pretraining.class_names]
    return Guidance(hashed_ngrams(names), alike.indices.numpy())


def _class_means(split: Split, on_progress: OnProgress) -> NDArray[np.float32]:
    """Mean features of each class, rows of length 1, (C, F)."""
    features = apply_in_batches(load_pretrained_cnn("glyphs-cnn", on_progress), split.inputs, torch.device("cpu"))
    sums = np.zeros((split.num_classes, features.shape[1]), dtype=np.float32)
    np.add.at(sums, split.labels, features)
    unit: NDArray[np.float32] = normalize(sums)
    return unit
