"""Proxy-Anchor, Smooth Proxy-Anchor and Adaptive Proxy-Anchor: what they have in common, and what is their own."""

import math
from functools import partial

import loop_losses
import pytest
import torch
from hypothesis import given
from ref_cases import Case, assert_same, cases, few, leaves

import python_ref


def proxy_anchor(case, **reduction):
    return python_ref.proxy_anchor_loss(case.X, case.P, case.y, 8.0, 0.1, case.v, **reduction)


def smooth(case, **reduction):
    return python_ref.smooth_proxy_anchor_loss(case.X, case.P, case.c, 8.0, 0.1, 20.0, 0.6, case.v, **reduction)


def adaptive(case, negative_margin="sample", **reduction):
    return python_ref.adaptive_proxy_anchor_loss(
        case.X, case.P, case.y, case.m, 8.0, 0.5, negative_margin, case.v, **reduction
    )


adaptive_by_proxy = partial(adaptive, negative_margin="proxy")
LOOPS = {
    proxy_anchor: lambda X, P, y, c, m, v: loop_losses.proxy_anchor(X, P, y, 8.0, 0.1, v),
    smooth: lambda X, P, y, c, m, v: loop_losses.smooth_proxy_anchor(X, P, c, 8.0, 0.1, 20.0, 0.6, v),
    adaptive: lambda X, P, y, c, m, v: loop_losses.adaptive_proxy_anchor(X, P, y, m, 8.0, 0.5, "sample", v),
    adaptive_by_proxy: lambda X, P, y, c, m, v: loop_losses.adaptive_proxy_anchor(X, P, y, m, 8.0, 0.5, "proxy", v),
}


@pytest.mark.parametrize("loss", LOOPS)
@few
@given(case=cases)
def test_agrees_with_loops(loss, case):
    by_loops = LOOPS[loss](*(each.tolist() for each in (case.X, case.P, case.y, case.c, case.m, case.v)))
    assert_same(loss(case).item(), by_loops)


@pytest.mark.parametrize("label", [-1, 4])
def test_label_out_of_range_is_refused(label):
    with pytest.raises(RuntimeError, match="Class values"):
        python_ref.proxy_anchor_loss(torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, label]))


@pytest.mark.parametrize(
    ("margins", "whose", "error", "message"),
    [
        *(
            ([*margins], "sample", ValueError, "positive mean")
            for margins in ([0.0], [-0.2], [0.1, -0.3, 0.2], [math.nan])
        ),
        ([1.0, 1.0], "sample", RuntimeError, "expanded size"),
        ([1.0], "both", ValueError, "'both'"),
    ],
)
def test_margins_that_are_refused(margins, whose, error, message):
    with pytest.raises(error, match=message):
        python_ref.adaptive_proxy_anchor_loss(
            torch.ones(2, 2), torch.ones(3, 2), torch.tensor([0, 1]), torch.tensor(margins), negative_margin=whose
        )


def test_single_negative_margin_is_allowed_while_the_mean_is_positive():
    case = Case(B=4, C=3, D=2, seed=1, zero_weights=False)
    m = torch.tensor([0.4, -0.1, 0.3], dtype=torch.float64)
    X, P, y = case.X.tolist(), case.P.tolist(), case.y.tolist()
    ours = python_ref.adaptive_proxy_anchor_loss(case.X, case.P, case.y, m, 8.0)
    assert_same(ours.item(), loop_losses.adaptive_proxy_anchor(X, P, y, m.tolist(), 8.0, 1.0, "sample", [1.0] * 4))


@few
@given(cases)
def test_eq_6_is_the_gradient(case):
    X, P = leaves(case.X, case.P)
    S = python_ref.cosine_similarity(P, X)
    G = python_ref.smooth_similarity_gradient(S.detach(), case.c, 8.0, 0.1, 20.0, 0.6)
    loss = python_ref.smooth_proxy_anchor_loss(X, P, case.c, 8.0, 0.1, 20.0, 0.6)
    assert_same(torch.autograd.grad(S, (X, P), G), torch.autograd.grad(loss, (X, P)))


def test_confidences_are_constants():
    case = Case(B=5, C=3, D=2, seed=1, zero_weights=False)
    X, c = leaves(case.X, case.c)
    python_ref.smooth_proxy_anchor_loss(X, case.P, c).backward()
    assert X.grad.any()
    assert c.grad is None


@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_no_confidence_above_the_threshold(confidence):
    """All samples are negatives, with 1 − w for their weights: half of them where c = λ."""
    case = Case(B=5, C=3, D=2, seed=4, zero_weights=False)
    X, P = leaves(case.X, case.P)
    c = torch.full((5, 3), confidence, dtype=torch.float64)
    shares = python_ref.smooth_proxy_anchor_loss(X, P, c, threshold=0.5, alpha=2.0, margin=0.0, reduction="none")
    S = python_ref.cosine_similarity(case.P, case.X)
    assert_same(shares, torch.log(1 + (0.5 if confidence else 1) * torch.exp(2 * S).sum(1)) / 3)
    shares.sum().backward()
    assert X.grad.isfinite().all()
    assert P.grad.any()


def test_nan_confidence_is_not_silent():
    case = Case(B=3, C=2, D=2, seed=5, zero_weights=False)
    case.c[1, 1] = math.nan
    assert python_ref.smooth_proxy_anchor_loss(case.X, case.P, case.c).isnan()
