import math

import pytest
import torch
from hypothesis import given
from pytorch_metric_learning.losses import ProxyAnchorLoss
from ref_cases import Case, assert_same, cases, few, leaves

from python_ref import cosine_similarity, proxy_anchor_loss


def test_two_classes_three_samples_by_hand():
    # Cosines: rows are proxies, columns samples of classes 0, 0, 1.
    X = torch.tensor([[2.0, 0.0], [3.0, 4.0], [0.0, 0.5]], dtype=torch.float64)
    P = torch.tensor([[5.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    s = [[1.0, 0.6, 0.0], [0.0, 0.8, 1.0]]
    assert_same(cosine_similarity(P, X), torch.tensor(s, dtype=torch.float64))

    e, a, d = math.exp, 3.0, 0.25
    share_0 = math.log(1 + e(-a * (1.0 - d)) + e(-a * (0.6 - d))) / 2 + math.log(1 + e(a * (0.0 + d))) / 2
    share_1 = math.log(1 + e(-a * (1.0 - d))) / 2 + math.log(1 + e(a * (0.0 + d)) + e(a * (0.8 + d))) / 2
    shares = proxy_anchor_loss(X, P, torch.tensor([0, 0, 1]), a, d, reduction="none")
    assert_same(shares, torch.tensor([share_0, share_1], dtype=torch.float64))
    assert_same(proxy_anchor_loss(X, P, torch.tensor([0, 0, 1]), a, d).item(), share_0 + share_1)


@pytest.mark.parametrize(("B", "C", "D", "alpha"), [(7, 3, 4, 32), (5, 40, 6, 32), (1, 2, 3, 32), (12, 5, 8, 500)])
def test_agrees_with_pytorch_metric_learning(B, C, D, alpha):
    random = torch.Generator().manual_seed(B)
    X = torch.randn(B, D, generator=random, dtype=torch.float64, requires_grad=True)
    y = torch.randint(C, (B,), generator=random)
    theirs = ProxyAnchorLoss(C, D, margin=0.2, alpha=alpha).double()
    P = theirs.proxies.detach().clone().requires_grad_()

    expected = theirs(X, y)
    expected_X, expected_P = torch.autograd.grad(expected, [X, theirs.proxies])
    loss = proxy_anchor_loss(X, P, y, alpha=alpha, margin=0.2)
    gradient_X, gradient_P = torch.autograd.grad(loss, [X, P])
    assert_same(loss, expected)
    assert_same(gradient_X, expected_X)
    assert_same(gradient_P, expected_P)


def test_weight_two_is_the_sample_twice():
    case = Case(B=6, C=4, D=3, seed=3, zero_weights=False)
    v = torch.ones(6, dtype=torch.float64)
    v[2] = 2
    twice = [0, 1, 2, 2, 3, 4, 5]
    assert_same(
        proxy_anchor_loss(case.X, case.P, case.y, sample_weights=v),
        proxy_anchor_loss(case.X[twice], case.P, case.y[twice]),
    )


@few
@given(cases)
def test_scale_of_vectors_is_immaterial(case):
    assert_same(proxy_anchor_loss(1e3 * case.X, 1e-3 * case.P, case.y), proxy_anchor_loss(case.X, case.P, case.y))


def test_divisors():
    # One class present out of three: |P⁺| = 1, |P| = 3 although the class present has no negatives.
    X = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    P = torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.0, 2.0]], dtype=torch.float64)
    shares = proxy_anchor_loss(X, P, torch.tensor([0]), 1.0, 0.0, reduction="none")
    log2 = math.log(2)
    assert_same(shares, torch.tensor([log2, log2 / 3, log2 / 3], dtype=torch.float64))


def test_all_weights_zero_is_a_connected_zero():
    X, P, v = leaves(torch.randn(3, 2), torch.randn(2, 2), torch.zeros(3))
    loss = proxy_anchor_loss(X, P, torch.tensor([0, 1, 1]), sample_weights=v)
    assert loss.item() == 0
    loss.backward()
    assert not any(tensor.grad.any() for tensor in (X, P, v))


def test_zero_vectors():
    X, P = leaves(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    loss = proxy_anchor_loss(X, P, torch.tensor([0, 1]), alpha=2.0, margin=0.0)
    # Every cosine but s(x_1, p_0) = √½ is 0.
    expected = math.log(2) / 2 + math.log(2) / 2 + math.log(1 + math.exp(math.sqrt(2))) / 2 + math.log(2) / 2
    assert_same(loss.item(), expected, 1e-6)
    loss.backward()
    assert not X.grad[0].any()
    assert not P.grad[1].any()
    assert X.grad[1].isfinite().all()
    assert P.grad[0].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_alpha_is_the_hinge_on_the_hardest(dtype):
    X = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], dtype=dtype, requires_grad=True)
    P = torch.tensor([[-1.0, 0.0], [0.0, 1.0]], dtype=dtype, requires_grad=True)
    loss = proxy_anchor_loss(X, P, torch.tensor([0, 0, 1]), alpha=500.0)
    # Exponents: positives 500 · (1.1, 0.7) of p_0; negatives 500 · 0.1 of p_0, 500 · (0.1, 0.9) of p_1.
    assert_same(loss.item(), 550 / 2 + 0 / 2 + 50 / 2 + 450 / 2, 1e-6)
    loss.backward()
    assert X.grad.isfinite().all()
    assert P.grad.isfinite().all()
    assert P.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtype_is_kept(dtype):
    case = Case(B=6, C=4, D=3, seed=3, zero_weights=False)
    loss = proxy_anchor_loss(case.X.to(dtype), case.P.to(dtype), case.y, alpha=4.0)
    assert loss.dtype == dtype
    assert_same(loss.item(), proxy_anchor_loss(case.X, case.P, case.y, alpha=4.0).item(), 10 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("label", [-1, 4])
def test_label_out_of_range_is_refused(label):
    with pytest.raises(RuntimeError, match="Class values"):
        proxy_anchor_loss(torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, label]))
