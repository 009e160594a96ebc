"""Softmax losses without and with a margin, SoftTriple's regulariser and the mean over samples, against loops."""

import math

import pytest
import torch
from hypothesis import given
from loop_losses import cosine
from ref_cases import assert_same, cases, few

from python_ref import (
    arcface_loss,
    cosface_loss,
    mean_over_samples,
    normalized_softmax_loss,
    soft_triple_regularizer,
)


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


@few
@given(cases)
def test_losses_with_a_margin_are_their_loops(case):
    X, P, y, v = (tensor.tolist() for tensor in (case.X, case.P, case.y, case.v))
    moves = {
        "cosface": lambda c: c - 0.4,
        "arcface": lambda c: math.cos(math.acos(c) + 1) if math.acos(c) <= math.pi - 1 else c - math.sin(1),
    }
    for name, move in moves.items():
        losses = []
        for x, label in zip(X, y, strict=True):
            cosines = [min(1.0, max(-1.0, cosine(x, p))) for p in P]
            others = sum(math.exp(3 * c) for k, c in enumerate(cosines) if k != label)
            own = math.exp(3 * move(cosines[label]))
            losses.append(-math.log(own / (own + others)))
        loss = cosface_loss if name == "cosface" else arcface_loss
        margin = 0.4 if name == "cosface" else math.degrees(1)
        each = loss(case.X, case.y, case.P, margin, 3.0, reduction="none")
        # Where vectors are parallel a rounding error e of the cosine is one of √e in the angle.
        torch.testing.assert_close(each, torch.tensor(losses, dtype=torch.float64), rtol=0, atol=1e-7)
        kept = [(value, weight) for value, weight in zip(losses, v, strict=True) if weight]
        expected = sum(value * weight for value, weight in kept) / len(kept) if kept else 0.0
        assert loss(case.X, case.y, case.P, margin, 3.0, case.v).item() == pytest.approx(expected, abs=1e-6)


def test_of_sub_centers_the_nearest_counts():
    generator = torch.Generator().manual_seed(0)
    X, W = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((6, 3), (4, 2, 3)))
    y = torch.arange(6) % 4
    nearest = [max(of_class, key=lambda w: cosine(x, w)) for x in X.tolist() for of_class in W.tolist()]
    flat = torch.tensor(nearest, dtype=torch.float64).view(6, 4, 3)
    for i in range(6):
        alone = arcface_loss(X[i : i + 1], y[i : i + 1], flat[i])
        torch.testing.assert_close(arcface_loss(X[i : i + 1], y[i : i + 1], W), alone)
