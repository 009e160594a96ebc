import copy
import math

import loop_losses
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ref_cases import Case, assert_same, cases, few, leaves

from python_ref import adaptive_proxy_anchor_loss, cosine_similarity, proxy_anchor_loss


@few
@given(cases, st.sampled_from(["sample", "proxy"]), st.sampled_from(["()", "(1,)", "(C,)"]))
def test_equal_margins_are_proxy_anchor_and_a_constant(case, negative_margin, shape):
    sizes = {"()": (), "(1,)": (1,), "(C,)": (len(case.P),)}
    m = torch.full(sizes[shape], 0.2, dtype=torch.float64)
    shares = adaptive_proxy_anchor_loss(case.X, case.P, case.y, m, 8.0, 3.0, negative_margin, case.v, reduction="none")
    plain = proxy_anchor_loss(case.X, case.P, case.y, 8.0, 0.2, case.v, reduction="none")
    assert_same(shares, plain + 3.0 / 0.2 / len(case.P))
    loss = adaptive_proxy_anchor_loss(case.X, case.P, case.y, m, 8.0, 3.0, negative_margin, case.v)
    assert_same(loss, plain.sum() + 3.0 / 0.2)


@few
@given(cases)
def test_margin_gradient_is_the_sum_of_absolute_similarity_gradients(case):
    sizes = len(case.P), len(case.X)
    weights = {"alpha": 8.0, "regularization": 0.5, "sample_weights": case.v}
    G = _similarity_gradient(case, 8.0)
    assert G.shape == sizes
    regulariser = -0.5 / len(case.P) / case.m.mean() ** 2
    (m,) = leaves(case.m)
    adaptive_proxy_anchor_loss(case.X, case.P, case.y, m, **weights).backward()
    by_class = torch.zeros(len(case.P), dtype=torch.float64).index_add(0, case.y, G.abs().sum(0))
    assert_same(m.grad, by_class + regulariser)

    (m,) = leaves(case.m.mean())
    adaptive_proxy_anchor_loss(case.X, case.P, case.y, m, **weights).backward()
    uniform = copy.copy(case)
    uniform.m = case.m.mean().expand(len(case.P))
    assert_same(m.grad, _similarity_gradient(uniform, 8.0).abs().sum() - 0.5 / case.m.mean() ** 2)


@few
@given(cases)
def test_sample_weight_gradient(case):
    (v,) = leaves(case.v)
    adaptive_proxy_anchor_loss(case.X, case.P, case.y, case.m, alpha=8.0, sample_weights=v).backward()
    present = case.v > 0
    expected = _similarity_gradient(case, 8.0).abs().sum(0)[present] / (8.0 * case.v[present])
    assert_same(v.grad[present], expected)
    assert not v.grad[~present].any()


@pytest.mark.parametrize("margins", [[0.0], [-0.2], [0.1, -0.3, 0.2], [math.nan]])
def test_mean_margin_must_be_positive(margins):
    with pytest.raises(ValueError, match="positive mean"):
        adaptive_proxy_anchor_loss(torch.ones(2, 2), torch.ones(3, 2), torch.tensor([0, 1]), torch.tensor(margins))


def test_single_negative_margin_is_allowed_while_the_mean_is_positive():
    case = Case(B=4, C=3, D=2, seed=1, zero_weights=False)
    m = torch.tensor([0.4, -0.1, 0.3], dtype=torch.float64)
    X, P, y = case.X.tolist(), case.P.tolist(), case.y.tolist()
    ours = adaptive_proxy_anchor_loss(case.X, case.P, case.y, m, 8.0)
    assert_same(ours.item(), loop_losses.adaptive_proxy_anchor(X, P, y, m.tolist(), 8.0, 1.0, "sample", [1.0] * 4))


def test_margins_of_another_shape_are_refused():
    with pytest.raises(RuntimeError, match="expanded size"):
        adaptive_proxy_anchor_loss(torch.ones(2, 2), torch.ones(3, 2), torch.tensor([0, 1]), torch.ones(2))


def test_unknown_negative_margin_is_refused():
    with pytest.raises(ValueError, match="'both'"):
        adaptive_proxy_anchor_loss(
            torch.ones(1, 2), torch.ones(1, 2), torch.tensor([0]), torch.ones(1), negative_margin="both"
        )


def _similarity_gradient(case, alpha):
    """∂L_proxy/∂S from the formula of docs/equations.md, section 4, without precautions; margins of the samples."""
    S = cosine_similarity(case.P, case.X)
    m = case.m[case.y]
    positive = (torch.arange(len(case.P))[:, None] == case.y) & (case.v > 0)
    negative = (torch.arange(len(case.P))[:, None] != case.y) & (case.v > 0)
    h_positive = positive * case.v * torch.exp(-alpha * (S - m))
    h_negative = negative * case.v * torch.exp(alpha * (S + m))
    q_positive = h_positive / (1 + h_positive.sum(1, keepdim=True))
    q_negative = h_negative / (1 + h_negative.sum(1, keepdim=True))
    return alpha * (q_negative / len(case.P) - q_positive / positive.any(1).sum().clamp(min=1))
