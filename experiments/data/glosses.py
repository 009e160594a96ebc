"""Glosses of WordNet: a sample is the definition of a noun, its class a hypernym of the noun.

A sample is the gloss of a synset, such as "large white heron of the Old World"; its class is the hypernym that lies
`DEPTH` steps below *entity*. Glosses become vectors by latent semantic analysis: the weights (TF-IDF) of their n-grams
of letters, and of these the principal directions of the training glosses.

Source: Miller, "WordNet: a lexical database for English", Communications of the ACM 38, 1995; version 3.0. Deerwester
et al., "Indexing by latent semantic analysis", JASIS 41, 1990.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from experiments.data.splits import divide
from experiments.taxonomy.wordnet import Synset, depths, find_wordnet, read_synsets
from robustdml.cache import cache_folder, make_once, write_whole
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named import NamedData
from robustdml.plain_files import read_npz

RECIPE_VERSION = 1
# Depth of the classes in the tree; it has the most classes.
DEPTH = 6
SMALLEST_CLASS, LARGEST_CLASS = 10, 50
NUM_FEATURES = 256
# Chosen by the untouched features' Recall@1 on `glosses-validation`: 3 to 4 letters 0.474, 3 to 5 0.432, 3 to 6 0.415,
# whole words 0.297 (0.308 without the most frequent ones).
_LETTERS = (3, 4)
# Least number of training glosses with an n-gram.
_MIN_GLOSSES = 3
_SEED = 0


def load_glosses(name: str = "glosses") -> RetrievalData:
    """Glosses of nouns as vectors, with their hypernyms as classes."""
    source = find_wordnet(f"data {name!r}")
    path = cache_folder() / f"{name}-{_key(source)}.npz"
    make_once(lambda: write_whole(path, partial(_write, name, source)), path)
    parts = [[f"{part}_{kind}" for kind in ("features", "labels", "names")] for part in ("train", "test")]
    train, test = (
        Split(features, labels, tuple(names.tolist()))
        for features, labels, names in (read_npz(path, part).values() for part in parts)
    )
    return RetrievalData(name, train, test)


NAMED = {name: NamedData("text", partial(load_glosses, name)) for name in ("glosses", "glosses-validation")}


@cache
def _key(source: Path) -> str:
    settings = (RECIPE_VERSION, DEPTH, SMALLEST_CLASS, LARGEST_CLASS, NUM_FEATURES, _LETTERS, _MIN_GLOSSES)
    digest = hashlib.sha256(f"{settings} {sklearn.__version__}".encode())
    digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _write(name: str, source: Path, file: BinaryIO) -> None:
    synsets = {synset.place: synset for synset in read_synsets(source)}
    texts = divide(name, _glosses_by_class(synsets))
    features = _latent_semantic_analysis(np.asarray(texts.train.inputs), np.asarray(texts.test.inputs))
    arrays: dict[str, Any] = {}
    for part, split, values in zip(("train", "test"), (texts.train, texts.test), features, strict=True):
        arrays |= {
            f"{part}_features": values,
            f"{part}_labels": split.labels,
            f"{part}_names": np.array(split.class_names),
        }
    np.savez(file, **arrays)


def _glosses_by_class(synsets: Mapping[int, Synset]) -> Split:
    """Glosses as texts, with their hypernyms as classes."""
    members = defaultdict(list)
    for place, kinds in _kinds(synsets).items():
        # A noun of several kinds has no unique label.
        if len(kinds) == 1 and place not in kinds:
            members[min(kinds)].append(place)
    random = np.random.default_rng(_SEED)
    classes = {
        kind: np.sort(random.permutation(places)[:LARGEST_CLASS])
        for kind, places in sorted(members.items())
        if len(places) >= SMALLEST_CLASS
    }
    texts = [_definition(synsets[place].gloss) for places in classes.values() for place in places.tolist()]
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), [len(places) for places in classes.values()])
    names = tuple(f"n{kind:08d} {synsets[kind].words[0].replace('_', ' ')}" for kind in classes)
    return Split(np.array(texts), labels, names)


def _kinds(synsets: Mapping[int, Synset]) -> dict[int, frozenset[int]]:
    """For each synset its hypernyms at depth `DEPTH`, itself included."""
    depth = depths(synsets)

    @cache
    def kinds(place: int) -> frozenset[int]:
        own = {place} if depth(place) == DEPTH else set()
        return frozenset(own.union(*(kinds(above) for above in synsets[place].hypernyms)))

    return {place: kinds(place) for place in synsets}


def _definition(gloss: str) -> str:
    """A gloss without its examples, which follow in quotation marks."""
    return gloss.partition('; "')[0]


def _latent_semantic_analysis(
    train: NDArray[np.generic], test: NDArray[np.generic]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Vectors of texts, (N, `NUM_FEATURES`), fitted to the training texts."""
    weights = TfidfVectorizer(analyzer="char_wb", ngram_range=_LETTERS, min_df=_MIN_GLOSSES, sublinear_tf=True)
    directions = TruncatedSVD(NUM_FEATURES, random_state=_SEED)
    train_features = directions.fit_transform(weights.fit_transform(train))
    test_features = directions.transform(weights.transform(test))
    return train_features.astype(np.float32), test_features.astype(np.float32)
