"""Labels made wrong at random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustdml.data import RetrievalData, Split
from robustdml.errors import UsageError
from robustdml.noise import symmetric, with_wrong_labels

CLASSES = {"sizes": st.lists(st.integers(0, 40), min_size=2, max_size=12), "seed": st.integers(0, 2**32)}


@given(**CLASSES, rate=st.floats(0, 1))
def test_share_of_each_class_is_exact(sizes, rate, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    check_shares(lambda: symmetric(labels, rate, seed, len(sizes)), labels, rate, sizes)


def unaltered(noise, labels):
    """What a noise gives, which leaves its argument alone and tells what it has changed."""
    before = labels.copy()
    noisy, changed = noise()
    assert np.array_equal(labels, before)
    assert np.array_equal(noisy != labels, changed)
    assert noisy.dtype == np.int64
    return noisy, changed


def check_shares(noise, labels, rate, sizes):
    """Check that a noise makes the same share of each class wrong."""
    noisy, changed = unaltered(noise, labels)
    for label, size in enumerate(sizes):
        assert changed[labels == label].sum() == int(np.floor(rate * size + 0.5))
    assert set(noisy.tolist()) <= set(range(len(sizes)))


def test_wrong_labels_are_uniform_over_the_others():
    labels = np.repeat(np.arange(5), 8000)
    noisy, changed = symmetric(labels, 0.5, 0, 5)
    counts = np.zeros((5, 5))
    np.add.at(counts, (labels[changed], noisy[changed]), 1)
    assert np.array_equal(np.diag(counts), np.zeros(5))
    # 1000 expected in each cell, standard deviation 27.
    assert np.abs(counts[~np.eye(5, dtype=bool)] - 1000).max() < 5 * 27.4


def wrong(noise, labels, seed, classes, features=None):
    """Labels made wrong by a noise that is given by its name."""
    inputs = np.zeros((len(labels), 2), np.float32) if features is None else features
    split = Split(inputs, labels, tuple(map(str, range(classes))))
    train = with_wrong_labels(RetrievalData("birds", split, split), noise, seed).train
    assert np.array_equal(train.reference_labels, labels)
    return train.labels


def test_names_and_seeds():
    labels = np.repeat(np.arange(4), 10)
    assert np.array_equal(wrong("none", labels, 0, 4), labels)
    first = wrong("symmetric:.3", labels, 7, 4)
    assert np.array_equal(first, symmetric(labels, 0.3, 7, 4)[0])
    assert not np.array_equal(first, wrong("symmetric:.3", labels, 8, 4))


def test_bad_names():
    for noise in ("", "symmetric", "symmetric:", "symmetric:1.5", "symmetric:-0.1", "foo:0.5", "symmetric:nan"):
        with pytest.raises(UsageError, match="expected one of none, symmetric:RATE"):
            wrong(noise, np.arange(3), 0, 3)
    with pytest.raises(UsageError, match="second class"):
        wrong("symmetric:0.5", np.zeros(3, dtype=int), 0, 1)
