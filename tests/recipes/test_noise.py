import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.noise import apply_noise, symmetric


@given(
    sizes=st.lists(st.integers(0, 40), min_size=2, max_size=12),
    rate=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_share_of_each_class_is_exact(sizes, rate, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    before = labels.copy()
    noisy, changed = symmetric(labels, rate, seed, len(sizes))
    assert np.array_equal(labels, before)
    assert np.array_equal(noisy != labels, changed)
    assert noisy.dtype == np.int64
    for label, size in enumerate(sizes):
        assert changed[labels == label].sum() == int(np.floor(rate * size + 0.5))
    if len(labels):
        assert noisy.min() >= 0
        assert noisy.max() < len(sizes)


def test_wrong_labels_are_uniform_over_the_others():
    labels = np.repeat(np.arange(5), 8000)
    noisy, changed = symmetric(labels, 0.5, 0, 5)
    counts = np.zeros((5, 5))
    np.add.at(counts, (labels[changed], noisy[changed]), 1)
    assert np.array_equal(np.diag(counts), np.zeros(5))
    # 1000 expected in each cell, standard deviation 27.
    assert np.abs(counts[~np.eye(5, dtype=bool)] - 1000).max() < 5 * 27.4


def test_is_a_pure_function_of_the_seed():
    labels = np.repeat(np.arange(10), 20)
    first, again, other = (symmetric(labels, 0.3, seed, 10)[0] for seed in (4, 4, 5))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_specs():
    labels = np.repeat(np.arange(4), 10)
    noisy, changed = apply_noise("none", labels, 0, 4)
    assert np.array_equal(noisy, labels)
    assert not changed.any()
    noisy, changed = apply_noise("symmetric:.3", labels, 7, 4)
    assert np.array_equal(noisy, symmetric(labels, 0.3, 7, 4)[0])
    assert changed.sum() == 12


@pytest.mark.parametrize(
    "spec", ["", "symmetric", "symmetric:", "symmetric:1.5", "symmetric:-0.1", "foo:0.5", "symmetric:nan"]
)
def test_bad_specs_are_named(spec):
    with pytest.raises(UsageError, match="expected none or symmetric:RATE"):
        apply_noise(spec, np.arange(3), 0, 3)


@pytest.mark.parametrize(
    ("labels", "rate", "classes", "message"),
    [
        (np.arange(3), 1.5, 3, "rate=1.5"),
        (np.arange(3), float("nan"), 3, "rate=nan"),
        (np.arange(3.0), 0.5, 3, "float64"),
        (np.zeros((2, 2), dtype=int), 0.5, 3, r"shape \(2, 2\)"),
        (np.arange(4), 0.5, 3, "0 to 3; expected 0 to 2"),
        (np.array([-1, 0]), 0.5, 3, "-1"),
        (np.zeros(3, dtype=int), 0.5, 1, "second class"),
    ],
)
def test_bad_arguments(labels, rate, classes, message):
    with pytest.raises(UsageError, match=message):
        symmetric(labels, rate, 0, classes)
