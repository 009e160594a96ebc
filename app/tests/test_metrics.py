"""`evaluate_embeddings` of arrays."""

import numpy as np
import pytest
import torch

from robustdml import evaluate_embeddings
from robustdml.errors import UsageError


def drawn(count, classes=30, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count) * 7 - 50
    means = np.random.default_rng(1).normal(size=(classes, 8))
    return (means[(labels + 50) // 7] + random.normal(size=(count, 8))).astype(np.float32), labels


def naive(queries, labels, gallery=None, there=None):
    """Recall@k and TAR at FAR by all similarities."""
    own = gallery is None
    gallery, there = (queries, labels) if own else (gallery, there)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, gallery)]
    s, same = unit[0] @ unit[1].T, labels[:, None] == there
    pairs = np.triu(np.ones_like(same), 1) if own else np.ones_like(same)
    if own:
        np.fill_diagonal(s, -2)
    order = np.argsort(-s, axis=1)
    has = (same.sum(1) - own) > 0
    recalls = {k: np.take_along_axis(same, order[:, :k], 1).any(1)[has].mean() for k in (1, 8)}
    genuine, impostor = s[same & pairs], np.sort(s[~same & pairs])[::-1]
    return recalls, {far: (genuine > impostor[int(far * len(impostor))]).mean() for far in (1e-1, 1e-2)}


@pytest.mark.parametrize("apart", [False, True])
def test_metrics_are_those_of_all_similarities(apart):
    X, y = drawn(300)
    gallery = drawn(200, seed=2) if apart else None
    found = evaluate_embeddings(torch.from_numpy(X), y.tolist(), gallery=gallery)
    recalls, tars = naive(X, y, *(gallery or ()))
    for k, value in recalls.items():
        assert found[f"Recall@{k}"] == pytest.approx(value)
    for far, value in tars.items():
        assert found["TAR at FAR"][far] == pytest.approx(value, abs=0.01)
    assert 1e-6 not in found["TAR at FAR"]  # too few pairs
    assert 0 < found["MAP@R"] < found["R-precision"] < 1


def test_half_precision_and_scale():
    X, y = drawn(200)
    found = evaluate_embeddings((20 * X).astype(np.float16), y)
    assert found["Recall@1"] == pytest.approx(evaluate_embeddings(X, y)["Recall@1"], abs=0.02)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.ones((3, 2)), [0, 1]), r"labels must be integers of shape \(3,\)"),
        ((np.ones((2, 2)), [0.5, 1.0]), "labels must be integers"),
        ((np.ones(3), [0, 1, 2]), r"embeddings must be floating-point numbers \(N, D\)"),
        ((np.ones((2, 2)), [0, 1]), "no sample has another one of its class"),
        ((np.full((2, 2), np.nan), [0, 0]), "NaN or infinite"),
    ],
)
def test_bad_input(given, message):
    with pytest.raises(UsageError, match=message):
        evaluate_embeddings(*given)


def test_a_gallery_of_another_width():
    with pytest.raises(UsageError, match=r"gallery\[0\] has 3 columns and embeddings 2"):
        evaluate_embeddings(np.ones((2, 2)), [0, 0], gallery=(np.ones((2, 3)), [0, 0]))
