import pytest
import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from ref_cases import Case, assert_same

from python_ref import proxy_anchor_loss


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
