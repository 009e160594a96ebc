import math

import pytest
import torch
from hypothesis import given
from ref_cases import Case, assert_same, cases, few, leaves

from python_ref import (
    cosine_similarity,
    smooth_proxy_anchor_loss,
    smooth_similarity_gradient,
)


@few
@given(cases)
def test_eq_6_is_the_gradient(case):
    X, P = leaves(case.X, case.P)
    S = cosine_similarity(P, X)
    G = smooth_similarity_gradient(S.detach(), case.c, 8.0, 0.1, 20.0, 0.6)
    loss = smooth_proxy_anchor_loss(X, P, case.c, 8.0, 0.1, 20.0, 0.6)
    for found, expected in zip(torch.autograd.grad(S, (X, P), G), torch.autograd.grad(loss, (X, P)), strict=True):
        assert_same(found, expected)


def test_confidences_are_constants():
    case = Case(B=5, C=3, D=2, seed=1, zero_weights=False)
    X, c = leaves(case.X, case.c)
    smooth_proxy_anchor_loss(X, case.P, c).backward()
    assert X.grad.any()
    assert c.grad is None


@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_no_confidence_above_the_threshold(confidence):
    """All samples are negatives, with 1 − w for their weights: half of them where c = λ."""
    case = Case(B=5, C=3, D=2, seed=4, zero_weights=False)
    X, P = leaves(case.X, case.P)
    c = torch.full((5, 3), confidence, dtype=torch.float64)
    shares = smooth_proxy_anchor_loss(X, P, c, threshold=0.5, alpha=2.0, margin=0.0, reduction="none")
    S = cosine_similarity(case.P, case.X)
    assert_same(shares, torch.log(1 + (0.5 if confidence else 1) * torch.exp(2 * S).sum(1)) / 3)
    shares.sum().backward()
    assert X.grad.isfinite().all()
    assert P.grad.any()


def test_nan_confidence_is_not_silent():
    case = Case(B=3, C=2, D=2, seed=5, zero_weights=False)
    case.c[1, 1] = math.nan
    assert smooth_proxy_anchor_loss(case.X, case.P, case.c).isnan()
