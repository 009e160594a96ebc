"""What Proxy-Anchor, Smooth Proxy-Anchor and Adaptive Proxy-Anchor have in common."""

import loop_losses
import pytest
import torch
from hypothesis import given
from ref_cases import assert_same, cases, few, leaves

from python_ref import adaptive_proxy_anchor_loss, proxy_anchor_loss, smooth_proxy_anchor_loss


def proxy_anchor(case, **reduction):
    return proxy_anchor_loss(case.X, case.P, case.y, 8.0, 0.1, case.v, **reduction)


def smooth(case, **reduction):
    return smooth_proxy_anchor_loss(case.X, case.P, case.c, 8.0, 0.1, 20.0, 0.6, case.v, **reduction)


def adaptive(case, negative_margin="sample", **reduction):
    return adaptive_proxy_anchor_loss(case.X, case.P, case.y, case.m, 8.0, 0.5, negative_margin, case.v, **reduction)


def adaptive_by_proxy(case, **reduction):
    return adaptive(case, "proxy", **reduction)


LOOPS = {
    proxy_anchor: lambda X, P, y, c, m, v: loop_losses.proxy_anchor(X, P, y, 8.0, 0.1, v),
    smooth: lambda X, P, y, c, m, v: loop_losses.smooth_proxy_anchor(X, P, c, 8.0, 0.1, 20.0, 0.6, v),
    adaptive: lambda X, P, y, c, m, v: loop_losses.adaptive_proxy_anchor(X, P, y, m, 8.0, 0.5, "sample", v),
    adaptive_by_proxy: lambda X, P, y, c, m, v: loop_losses.adaptive_proxy_anchor(X, P, y, m, 8.0, 0.5, "proxy", v),
}
every_loss = pytest.mark.parametrize("loss", LOOPS)


def gradients(loss, case):
    """Value, and gradients by samples, proxies, sample weights and margins; None for those that a loss has not."""
    case.X, case.P, case.v, case.m = leaves(case.X, case.P, case.v, case.m)
    value = loss(case)
    return value, torch.autograd.grad(value, (case.X, case.P, case.v, case.m), allow_unused=True)


@every_loss
@few
@given(case=cases)
def test_agrees_with_loops(loss, case):
    by_loops = LOOPS[loss](*(each.tolist() for each in (case.X, case.P, case.y, case.c, case.m, case.v)))
    assert_same(loss(case).item(), by_loops)


@every_loss
@few
@given(case=cases)
def test_weight_zero_is_absence(loss, case):
    present = case.v > 0
    value, (X, P, v, m) = gradients(loss, case.replaced())
    expected, (X_, P_, v_, m_) = gradients(loss, case.samples(present))
    assert_same(value, expected)
    assert_same(X[present], X_)
    assert_same(P, P_)
    assert_same(v[present], v_)
    assert not X[~present].any()
    assert not v[~present].any()
    assert (m is None) == (m_ is None) == (loss in (proxy_anchor, smooth))
    if m is not None:
        assert_same(m, m_)


@pytest.mark.parametrize("label", [-1, 4])
def test_label_out_of_range_is_refused(label):
    with pytest.raises(RuntimeError, match="Class values"):
        proxy_anchor_loss(torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, label]))
