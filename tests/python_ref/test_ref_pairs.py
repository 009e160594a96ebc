"""The references of the losses on pairs against loops that say the equations one pair at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ref_cases import assert_same, few, leaves

from python_ref import contrastive_loss, cosine_similarity, multi_similarity_loss
from python_ref.pairs import ABSENT

SIZES = {"B": st.integers(0, 7), "m": st.none() | st.integers(0, 6), "seed": st.integers(0, 2**32)}


def draw(B, m, seed):
    random = torch.Generator().manual_seed(seed)
    rows = lambda n: torch.randn(n, 3, generator=random, dtype=torch.float64)  # noqa: E731
    labels = lambda n: torch.tensor([-7, 0, 2, ABSENT])[torch.randint(4, (n,), generator=random)]  # noqa: E731
    X, y = rows(B), labels(B)
    if m is None:
        return X, y, None, None
    return (X, y, rows(B), y) if m == B else (X, y, rows(m), labels(m))


def similarities(X, y, V, z):
    """Of every anchor, those with its positives and those with its negatives, each with the candidate's number."""
    S = cosine_similarity(X, X if V is None else V).tolist()
    others = (y if V is None else z).tolist()
    for i, label in enumerate(y.tolist()):
        left_out = i if V is None or z is y else None
        row = [(s, j) for j, s in enumerate(S[i]) if ABSENT not in (others[j], label) and j != left_out]
        yield [(s, j) for s, j in row if others[j] == label], [(s, j) for s, j in row if others[j] != label]


@given(**SIZES, epsilon=st.none() | st.sampled_from([-0.2, 0.0, 0.1, 1.0]))
@few
def test_multi_similarity(B, m, seed, epsilon):
    X, y, V, z = draw(B, m, seed)
    weights = torch.linspace(0, 1, B if m is None else m, dtype=torch.float64)
    expected = []
    for positives, negatives in similarities(X, y, V, z):
        if epsilon is not None:
            lowest = min((s for s, _ in positives), default=math.inf)
            highest = max((s for s, _ in negatives), default=-math.inf)
            positives = [(s, j) for s, j in positives if s - epsilon < highest]
            negatives = [(s, j) for s, j in negatives if s + epsilon > lowest]
        loss = 0.0
        for pairs, slope in ((positives, -2.0), (negatives, 9.0)):
            total = sum(math.exp(slope * (s - 0.5)) for s, _ in pairs)
            mean = sum(float(weights[j]) for _, j in pairs) / max(1, len(pairs))
            loss += mean * math.log1p(total) / abs(slope)
        expected.append(loss)
    settings = {"alpha": 2.0, "beta": 9.0, "epsilon": epsilon, "candidate_weights": weights, "reduction": "none"}
    ours = multi_similarity_loss(X, y, V, z, **settings)
    assert_same(ours, torch.tensor(expected, dtype=torch.float64))


@given(**SIZES, distance=st.sampled_from(["euclidean", "cosine"]))
@few
def test_contrastive(B, m, seed, distance):
    X, y, V, z = draw(B, m, seed)
    hinges = ([], [])
    for positives, negatives in similarities(X, y, V, z):
        for s, _ in positives:
            hinges[0].append(math.sqrt(max(0, 2 - 2 * s)) - 0.6 if distance == "euclidean" else 0.6 - s)
        for s, _ in negatives:
            hinges[1].append(0.9 - math.sqrt(max(0, 2 - 2 * s)) if distance == "euclidean" else s - 0.9)
    above = [[value for value in side if value > 0] for side in hinges]
    expected = sum(sum(side) / max(1, len(side)) for side in above)
    ours = contrastive_loss(X, y, V, z, pos_margin=0.6, neg_margin=0.9, distance=distance)
    assert_same(ours, torch.tensor(expected, dtype=torch.float64), 1e-9)


def test_mining_is_a_constant_of_the_gradient():
    X, y, _, _ = draw(7, None, 1)
    (X,) = leaves(X)
    assert torch.autograd.gradcheck(lambda X: multi_similarity_loss(X, y, epsilon=0.1, reduction="none"), (X,))


def test_unknown_reduction():
    with pytest.raises(ValueError, match='reduction must be "mean" or "none"'):
        contrastive_loss(*draw(4, None, 0)[:2], reduction="sum")
