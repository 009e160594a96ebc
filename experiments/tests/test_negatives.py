"""The experiment on negatives that are left out."""

import numpy as np
import pytest

from experiments.commands.negatives import LABELS, relabelled, tables
from robustdml.data import RetrievalData, Split


@pytest.fixture
def data():
    labels = np.repeat(np.arange(7), 12)
    split = Split(np.zeros((len(labels), 2), np.float32), labels, tuple("abcdefg"))
    return RetrievalData("few", split, split)


def test_labels_of_each_kind(data):
    train = data.train
    right, flipped, split, merged = (relabelled(data, kind, 0).train for kind in LABELS)
    assert right is train
    assert (flipped.labels != train.labels).mean() == pytest.approx(0.4, abs=0.03)
    assert split.num_classes == 14
    assert (split.labels // 2 == train.labels).all()
    assert set(split.labels % 2) == {0, 1}
    assert split.class_names[:2] == ("a 1", "a 2")
    assert merged.num_classes == 4
    together = {frozenset(train.labels[merged.labels == pair].tolist()) for pair in range(4)}
    assert sorted(map(len, together)) == [1, 2, 2, 2]
    for pair, name in enumerate(merged.class_names):
        assert name == " and ".join(train.class_names[k] for k in sorted(set(train.labels[merged.labels == pair])))


def test_tables_of_means_over_the_seeds():
    cell = {"labels": LABELS[0], "share": 1.0, "limit": None, "MAP@R": 0.2}
    runs = [cell | {"seed": 0, "Recall@1": 0.5}, cell | {"seed": 1, "Recall@1": 0.7}]
    runs.append(cell | {"seed": 0, "labels": LABELS[1], "limit": 0.4, "share": 0.1, "Recall@1": 0.1})
    found = tables(runs)
    assert found["noises"] == [LABELS[0], LABELS[1]]
    assert found["Recall@1"] == {
        "all negatives": [pytest.approx(0.6), None],
        "10% of the negatives, without cosines above 0.4": [None, 0.1],
    }
