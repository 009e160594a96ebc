"""Normalised softmax, the regulariser of SoftTriple and the mean over samples, against loops over floats."""

import doctest
import math

import pytest
import torch
from hypothesis import given
from loop_losses import cosine
from ref_cases import assert_same, cases, few

from python_ref import mean_over_samples, normalized_softmax, normalized_softmax_loss, soft_triple_regularizer


def test_docstring_examples():
    result = doctest.testmod(normalized_softmax)
    assert result.attempted > 0
    assert result.failed == 0


@few
@given(cases)
def test_normalized_softmax_is_its_loop(case):
    X, P, y, v = (tensor.tolist() for tensor in (case.X, case.P, case.y, case.v))
    losses = []
    for x, label in zip(X, y, strict=True):
        terms = [math.exp(cosine(x, p) / 0.3) for p in P]
        losses.append(-math.log(terms[label] / sum(terms)))
    each = normalized_softmax_loss(case.X, case.y, case.P, 0.3, reduction="none")
    assert_same(each, torch.tensor(losses, dtype=torch.float64))
    kept = [(loss, weight) for loss, weight in zip(losses, v, strict=True) if weight]
    expected = sum(loss * weight for loss, weight in kept) / len(kept) if kept else 0.0
    assert_same(normalized_softmax_loss(case.X, case.y, case.P, 0.3, case.v).item(), expected)


def test_mean_over_no_samples_is_a_connected_zero():
    losses = torch.ones(3, requires_grad=True)
    mean = mean_over_samples(losses, torch.zeros(3))
    mean.backward()
    assert mean == 0
    assert losses.grad.tolist() == [0, 0, 0]
    assert mean_over_samples(torch.ones(0)) == 0


@pytest.mark.parametrize(("C", "H"), [(1, 2), (4, 3), (2, 5)])
def test_soft_triple_regularizer_is_its_loop(C, H):
    centers = torch.randn(C, H, 3, generator=torch.Generator().manual_seed(H), dtype=torch.float64)
    unit = [[[v / math.hypot(*c) for v in c] for c in of_class] for of_class in centers.tolist()]
    distances = [math.dist(of_class[a], of_class[b]) for of_class in unit for b in range(H) for a in range(b)]
    assert_same(soft_triple_regularizer(centers).item(), sum(distances) / (C * H * (H - 1)))
