"""Negatives left out because they are similar: who is, and what stays; values are among those of every loss."""

import pytest
import torch

from python_ref import own_class_limits, proxy_anchor_loss
from robustdml_ops.losses import (
    AdaptiveProxyAnchorLoss,
    CosFaceLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SmoothProxyAnchorLoss,
)
from robustdml_ops.losses.families.class_matrix import chance_cosine
from robustdml_ops.ops import ABSENT, AnchorBiases, LabelSets, anchor_lse, similarity

B, C, D = 12, 9, 4
LABELS = torch.arange(B) % 5


def loss_of(limit, backend, **options):
    torch.manual_seed(0)
    return ProxyAnchorLoss(C, D, drop_similar_negatives=limit, backend=backend, **options).double()


def test_the_divisors_stay(backend):
    """Both terms are divided by |P⁺| = 5 and |P| = 9, even where all negatives of a proxy are left out."""
    X = torch.randn(B, D, dtype=torch.float64)
    whole, limited, nothing = (loss_of(limit, backend, reduction="none") for limit in (None, 0.1, -0.9999))
    s = similarity(whole.proxies.detach(), X)
    own = torch.arange(C)[:, None] == LABELS
    e_positive, e_negative = torch.exp(-32 * (s - 0.1)) * own, torch.exp(32 * (s + 0.1)) * ~own
    positive = torch.log1p(e_positive.sum(1)) / 5
    kept = torch.log1p((e_negative * (s <= 0.1)).sum(1)) / 9
    torch.testing.assert_close(whole(X, LABELS), positive + torch.log1p(e_negative.sum(1)) / 9)
    torch.testing.assert_close(limited(X, LABELS), positive + kept)
    torch.testing.assert_close(nothing(X, LABELS), positive)


def test_a_negative_at_the_limit_stays(backend):
    """Cosines of 1/2 are exact here; those of positives may exceed any limit."""
    X, P = torch.ones(2, 4).double(), torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0]]).double()
    bias = torch.zeros(2).double()
    for limit, left in ((0.5, 1), (0.49, 0)):
        sets, biases = LabelSets.of(torch.tensor([0, 0])), AnchorBiases(bias, bias)
        lse = anchor_lse(X, P, sets, biases, alpha=2.0, drop_similar_negatives=limit, backend=backend)
        expected = torch.tensor([0, left * (2 * torch.e)]).double().log1p()
        torch.testing.assert_close(lse.negative, expected)
        assert lse.positive[0] > 0.2


def test_of_2017_a_sample_without_a_negative_has_no_loss(backend):
    settings = {"include_positive": False, "drop_similar_negatives": -0.9999, "backend": backend}
    loss, X = ProxyNCALoss(C, D, **settings).double(), torch.randn(B, D, dtype=torch.float64, requires_grad=True)
    value = loss(X, LABELS)
    value.backward()
    assert value == 0 and not X.grad.any() and not loss.proxies.grad.any()


def test_a_limit_of_one_leaves_nothing_out(backend):
    X = torch.randn(B, D, dtype=torch.float64)
    losses = [loss_of(limit, backend) for limit in (None, 1)]
    X = torch.cat([X[:-1], losses[0].proxies.detach()[:1] * 3])
    assert torch.equal(*(loss(X, LABELS) for loss in losses))


@pytest.mark.parametrize("several", [False, True])
def test_negatives_nearer_than_the_own_class(several, backend):
    """With several classes the nearest counts; a sample without a class loses no negative. ‖dX‖ is that of the rest."""
    X = (torch.randn(B, D, dtype=torch.float64) + 3).requires_grad_()  # cosines about what chance may bring
    labels = torch.stack([LABELS, LABELS + 2], 1) if several else LABELS
    if several:
        labels[3], labels[5, 1] = ABSENT, ABSENT
    loss_function = loss_of("own", backend)
    loss_function.proxies.data = torch.randn(C, D, dtype=torch.float64) + 3
    s = similarity(X, loss_function.proxies).detach()
    limits = own_class_limits(s, labels, D)
    assert 0.1 < (s > limits[:, None]).double().mean() < 0.8
    assert (limits == chance_cosine(C, D)).any()
    expected = proxy_anchor_loss(X, loss_function.proxies, labels.clamp(min=-1), drop_similar_negatives=limits)
    found, wanted = loss_function(X, labels), (X, loss_function.proxies)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    gradients = (torch.autograd.grad(loss, wanted) for loss in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_one_vector_in_ten_is_nearer_by_chance():
    for C, D, tolerance in ((9, 4, 0.1), (1000, 16, 0.02), (20_000, 128, 0.01)):
        cosines = similarity(torch.randn(200, D), torch.randn(C, D)).amax(1)
        assert abs(cosines.quantile(0.9) - chance_cosine(C, D)) < tolerance
    assert chance_cosine(1, 8) == 0
    assert chance_cosine(5, 1) == 1


@pytest.mark.parametrize("place", ["embeddings", "proxies"])
def test_nan_is_named_where_it_is(place):
    loss_function, X = loss_of("own", None), torch.randn(B, D, dtype=torch.float64)
    (X if place == "embeddings" else loss_function.proxies.data)[2, 1] = torch.nan
    with pytest.raises(ValueError, match=rf"{place}\[2\] has NaN"):
        loss_function(X, LABELS)


def test_limits_under_autocast_are_float32():
    """In bfloat16 the own cosine of 0.9 would be 0.8984, and the other class, at 0.8995, would go."""
    loss_function = ProxyAnchorLoss(2, 2, drop_similar_negatives="own")
    angles = torch.tensor([0.9, 0.8995]).acos()
    loss_function.proxies.data = torch.stack([angles.cos(), angles.sin()], 1)
    X, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    with torch.autocast("cpu", torch.bfloat16):
        found = loss_function(X, labels)
    # Products may be of bfloat16; without the other class the loss is below 1e-4.
    torch.testing.assert_close(found, loss_function(X, labels), rtol=2e-3, atol=0)


def test_a_label_out_of_range_is_named_before_its_row_is_read():
    with pytest.raises(IndexError, match=r"= 9 is outside 0 … 8"):
        loss_of("own", None)(torch.randn(B, D).double(), torch.full((B,), C))


@pytest.mark.parametrize("kind", [ProxyAnchorLoss, AdaptiveProxyAnchorLoss, SmoothProxyAnchorLoss, CosFaceLoss])
@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (1.01, ValueError), ("0.4", TypeError)])
def test_a_limit_that_is_no_cosine(kind, limit, error):
    with pytest.raises(error, match=r"drop_similar_negatives must .*'own'"):
        kind(C, D, drop_similar_negatives=limit)


def test_confidences_have_no_own_class():
    with pytest.raises(ValueError, match="drop_similar_negatives='own' needs labels"):
        SmoothProxyAnchorLoss(C, D, drop_similar_negatives="own")


@pytest.mark.parametrize(("length", "limit", "message"), [(B - 1, 0.1, "length 12"), (B, torch.nan, "NaN")])
def test_limits_that_are_none(length, limit, message):
    bias, limits = torch.zeros(B), torch.full((length,), limit)
    with pytest.raises(ValueError, match=f"drop_similar_negatives.*{message}"):
        anchor_lse(
            torch.randn(B, D), torch.randn(C, D), LabelSets.of(LABELS), AnchorBiases(bias, bias), alpha=2.0,
            drop_similar_negatives=limits,
        )  # fmt: skip
