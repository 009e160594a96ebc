"""PRISM as its authors' public code has it: sequences against the reference, and the rules one by one."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from python_ref.prism import MemoryQueue, authors_filter, average_similarity, log_p_clean
from robustdml_ops.robust import PRISM
from robustdml_ops.robust.prism.authors import AuthorsSmoothTopR
from robustdml_ops.robust.prism.scores import Scores

D = 6


def batches(C, B, steps, seed):
    random = torch.Generator().manual_seed(seed)
    centers = torch.randn(C, D, generator=random, dtype=torch.float64)
    for _ in range(steps):
        labels, meant = torch.randint(C, (2, B), generator=random)
        wrong = torch.rand(B, generator=random) < 0.5
        noise = torch.randn(B, D, generator=random, dtype=torch.float64)
        yield centers[torch.where(wrong, meant, labels)] + 0.7 * noise, labels


def make(C, noise_rate, window):
    return PRISM(
        C,
        D,
        noise_rate=noise_rate,
        window=window,
        memory_size=1000,
        memory_dtype=torch.float64,
        preset="authors",
    )


@pytest.mark.parametrize("C", [1, 5, 30, 200])
@settings(max_examples=8, deadline=None)
@given(
    B=st.integers(4, 40),
    noise_rate=st.sampled_from([0.29, 0.5, 1.0]),
    window=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_sequences_are_those_of_the_reference(C, B, noise_rate, window, seed):
    prism, queue = make(C, noise_rate, window), MemoryQueue(1000)
    brought, stored = set(), []
    for X, labels in batches(C, B, 8, seed):
        result = prism(X, labels)
        if queue.rows:
            T = average_similarity(X, queue.vectors(), queue.labels(), C)
            T[:, [k for k in range(C) if k not in brought]] = -math.inf
            keep, stored = authors_filter(log_p_clean(T, labels, "zero").exp(), stored, noise_rate, window)
        else:
            keep = torch.ones(B, dtype=torch.bool)
        assert result.keep.tolist() == keep.tolist()
        if queue.rows:
            brought |= set(labels[keep].tolist())
        prism.enqueue(X, labels, result.keep)
        queue.enqueue(normalize(X, dim=1), labels, keep)
    kept = prism.threshold.quantiles[~prism.threshold.quantiles.isnan()]
    torch.testing.assert_close(kept.exp(), torch.tensor(stored, dtype=torch.float64))


def test_the_beginning_differs_from_the_papers():
    """400 classes: the second batch has none that is known, and half of it is removed where the paper removes none."""
    authors = make(400, 0.5, 10)
    paper = PRISM(400, D, noise_rate=0.5, window=10, memory_size=1000, memory_dtype=torch.float64, preset="paper")
    removed = {"authors": [], "paper": []}
    for X, labels in batches(400, 64, 2, seed=0):
        for name, prism in (("authors", authors), ("paper", paper)):
            keep = prism(X, labels).keep
            removed[name].append(int((~keep).sum()))
            prism.enqueue(X, labels, keep)
    assert removed["authors"] == [0, 32]
    assert removed["paper"] == [0, 0]


def verdict(threshold, p, known=None, empty=False):
    scores = torch.tensor(p, dtype=torch.float64)
    known = scores < 1 if known is None else known
    keep, m = threshold.judge(
        Scores(scores.log(), known, bank_is_empty=torch.tensor(empty)), torch.zeros(len(p), dtype=torch.int64)
    )
    return keep.tolist(), pytest.approx(float(m.exp()))


def test_the_rules_by_hand():
    threshold = AuthorsSmoothTopR(0.5, 3)
    assert verdict(threshold, [1, 1, 1, 1], empty=True) == ([True] * 4, 0)
    assert verdict(threshold, [1, 1, 0.2, 1]) == ([False, True, False, True], 1)
    assert threshold.quantiles.isnan().all()
    assert verdict(threshold, [0.4, 0.1, 0.2, 1]) == ([True, False, False, True], 0.2)
    assert verdict(threshold, [1, 1, 0.15, 1]) == ([True, True, False, True], 0.2)
    assert verdict(threshold, [0.8, 0.9, 0.8, 0.95]) == ([True] * 4, 0.5)


def test_a_mean_that_keeps_none_is_forgotten():
    threshold = AuthorsSmoothTopR(0.5, 3)
    verdict(threshold, [0.9, 0.9, 1, 1])
    assert verdict(threshold, [0.1, 0.2, 0.3, 0.4]) == ([False, False, True, True], 0.2)
    assert verdict(threshold, [0.3, 0.5, 0.9, 0.9]) == ([False, True, True, True], 0.35)


def test_fewer_than_one_to_remove():
    threshold = AuthorsSmoothTopR(0.1, 3)
    assert verdict(threshold, [0.1, 0.2, 0.3, 1]) == ([True] * 4, 0)
    assert threshold.quantiles.isnan().all()


def test_the_state_is_whole():
    prism = make(30, 0.5, 3)
    given_batches = list(batches(30, 20, 6, seed=1))
    for X, labels in given_batches[:3]:
        prism.enqueue(X, labels, prism(X, labels).keep)
    other = make(30, 0.5, 3)
    other.load_state_dict(copy.deepcopy(prism.state_dict()))
    for X, labels in given_batches[3:]:
        keep = prism(X, labels).keep
        assert torch.equal(other(X, labels).keep, keep)
        for each in (prism, other):
            each.enqueue(X, labels, keep)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"similarity": "proxy", "memory_size": None}, 'preset="authors" has similarity="average"'),
        ({"threshold": "top-r"}, 'got "average" with "top-r": take preset="paper"'),
        ({"threshold": "per-class"}, 'preset="authors" has no threshold="per-class"'),
        ({"unseen": "skip"}, 'preset="authors" has unseen="zero", got "skip"'),
        ({"num_samples": 9}, 'preset="authors" has no num_samples'),
    ],
)
def test_what_their_code_does_not_have(given, message):
    settings_given = {"noise_rate": 0.5, "memory_size": 10, "preset": "authors"} | given
    with pytest.raises(ValueError, match=message):
        PRISM(3, D, **settings_given)
