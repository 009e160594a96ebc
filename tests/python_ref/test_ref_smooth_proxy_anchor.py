import math

import pytest
import torch
from hypothesis import given
from ref_cases import Case, assert_same, cases, few, leaves

from python_ref import (
    confidence_head,
    cosine_similarity,
    smooth_proxy_anchor_loss,
    smooth_similarity_gradient,
)


def test_two_classes_three_samples_by_hand():
    X = torch.tensor([[2.0, 0.0], [3.0, 4.0], [0.0, 0.5]], dtype=torch.float64)
    P = torch.tensor([[5.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    # Cosines s(x, p): [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]. Sample 1 is a positive of both proxies, 2 of none.
    c = torch.tensor([[0.9, 0.0], [0.35, 0.5], [0.1, 0.3]], dtype=torch.float64)
    e, a, d, beta, threshold = math.exp, 3.0, 0.25, 10.0, 0.3
    w = [[1 / (1 + e(-beta * (value - threshold))) for value in row] for row in c.tolist()]
    positive_0 = math.log(1 + w[0][0] * e(-a * (1.0 - d)) + w[1][0] * e(-a * (0.6 - d)))
    positive_1 = math.log(1 + w[1][1] * e(-a * (0.8 - d)))
    negative_0 = math.log(1 + (1 - w[2][0]) * e(a * (0.0 + d)))
    negative_1 = math.log(1 + (1 - w[0][1]) * e(a * (0.0 + d)) + (1 - w[2][1]) * e(a * (1.0 + d)))
    assert w[2][1] == 0.5  # c = λ: a negative

    shares = smooth_proxy_anchor_loss(X, P, c, a, d, beta, threshold, reduction="none")
    expected = [(positive_0 + negative_0) / 2, (positive_1 + negative_1) / 2]
    assert_same(shares, torch.tensor(expected, dtype=torch.float64))


@few
@given(cases)
def test_eq_6_is_the_gradient(case):
    S = cosine_similarity(case.P, case.X).requires_grad_()
    gradient = smooth_similarity_gradient(S.detach(), case.c, 8.0, 0.1, 20.0, 0.6)
    expected = torch.autograd.grad(_loss_of_similarity(S, case.c, 8.0, 0.1, 20.0, 0.6), S)[0]
    assert_same(gradient, expected)


def test_eq_6_gives_the_gradients_of_embeddings_and_proxies():
    case = Case(B=7, C=4, D=5, seed=2, zero_weights=False)
    X, P = leaves(case.X, case.P)
    smooth_proxy_anchor_loss(X, P, case.c, 8.0, 0.1, 20.0, 0.6).backward()
    S = cosine_similarity(case.P, case.X)
    G = smooth_similarity_gradient(S, case.c, 8.0, 0.1, 20.0, 0.6)
    assert_same(X.grad, _through_normalisation(G.T @ _unit(case.P), case.X))
    assert_same(P.grad, _through_normalisation(G @ _unit(case.X), case.P))


def test_confidences_are_constants():
    case = Case(B=5, C=3, D=2, seed=1, zero_weights=False)
    X, c = leaves(case.X, case.c)
    smooth_proxy_anchor_loss(X, case.P, c).backward()
    assert X.grad.any()
    assert c.grad is None


def test_no_confidence_above_the_threshold():
    case = Case(B=5, C=3, D=2, seed=4, zero_weights=False)
    X, P = leaves(case.X, case.P)
    shares = smooth_proxy_anchor_loss(X, P, torch.zeros(5, 3), threshold=0.5, alpha=2.0, margin=0.0, reduction="none")
    S = cosine_similarity(case.P, case.X)
    assert_same(shares, torch.log(1 + torch.exp(2 * S).sum(1)) / 3)
    shares.sum().backward()
    assert X.grad.isfinite().all()
    assert P.grad.any()


@pytest.mark.parametrize("alpha", [500.0, 5000.0])
def test_extreme_alpha(alpha):
    case = Case(B=6, C=4, D=3, seed=5, zero_weights=False)
    X, P = leaves(case.X.float(), case.P.float())
    loss = smooth_proxy_anchor_loss(X, P, case.c.float(), alpha=alpha, threshold=0.6)
    # Weights shift by at most log 2; what is left is the hardest sample of each set.
    S, positive = cosine_similarity(case.P, case.X), case.c.T > 0.6
    hinges = [
        alpha * (sign * S + 0.1).masked_fill(~members, -1).amax(1).clamp(min=0)[members.any(1)].mean()
        for sign, members in ((-1, positive), (1, ~positive))
    ]
    assert abs(loss.item() - sum(hinges).item()) < 2 * math.log(7)
    loss.backward()
    assert X.grad.isfinite().all()
    assert P.grad.isfinite().all()
    assert P.grad.any()
    gradient = smooth_similarity_gradient(S, case.c, alpha=alpha, threshold=0.6)
    assert gradient.isfinite().all()


def test_nan_confidence_is_not_silent():
    case = Case(B=3, C=2, D=2, seed=5, zero_weights=False)
    case.c[1, 1] = math.nan
    assert smooth_proxy_anchor_loss(case.X, case.P, case.c).isnan()


def test_confidence_head_by_hand():
    features = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    hidden_weight = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    hidden_bias = torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64)
    weight = torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, -0.3]], dtype=torch.float64)
    bias = torch.tensor([0.1, -0.2], dtype=torch.float64)
    # Hidden before the ReLU: (-0.5, 1, 2.25) and (4, 0, -2.75).
    logits = [[-1 + 1.125 + 0.1, 2 - 0.675 - 0.2], [4 + 0.1, -0.2]]
    expected = torch.tensor([[1 / (1 + math.exp(-z)) for z in row] for row in logits], dtype=torch.float64)
    assert_same(confidence_head(features, hidden_weight, hidden_bias, weight, bias), expected)


def _unit(vectors):
    return vectors / vectors.norm(dim=1, keepdim=True)


def _through_normalisation(gradient, vectors):
    unit = _unit(vectors)
    return (gradient - (gradient * unit).sum(1, keepdim=True) * unit) / vectors.norm(dim=1, keepdim=True)


def _loss_of_similarity(S, c, alpha, margin, beta, threshold):
    """Eq. 5 as a function of the similarities, without any of the precautions of the reference."""
    positive = c.t().gt(threshold).double()
    w = 1 / (1 + torch.exp(-beta * (c.T - threshold)))
    positive_terms = torch.log(1 + (positive * w * torch.exp(-alpha * (S - margin))).sum(1))
    negative_terms = torch.log(1 + ((1 - positive) * (1 - w) * torch.exp(alpha * (S + margin))).sum(1))
    num_positive, num_negative = (positive.sum(1) > 0).sum(), ((1 - positive).sum(1) > 0).sum()
    return positive_terms.sum() / num_positive.clamp(min=1) + negative_terms.sum() / num_negative.clamp(min=1)
