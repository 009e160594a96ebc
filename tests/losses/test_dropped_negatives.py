"""Negatives left out because they are similar: who is, and what stays; values are among those of every loss."""

import pytest
import torch

from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss
from robustdml_ops.ops import AnchorBiases, LabelSets, anchor_lse, similarity

B, C, D = 12, 9, 4
LABELS = torch.arange(B) % 5
KINDS = (ProxyAnchorLoss, AdaptiveProxyAnchorLoss, SmoothProxyAnchorLoss)


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


def test_a_limit_of_one_leaves_nothing_out(backend):
    X = torch.randn(B, D, dtype=torch.float64)
    losses = [loss_of(limit, backend) for limit in (None, 1)]
    X = torch.cat([X[:-1], losses[0].proxies.detach()[:1] * 3])
    assert torch.equal(*(loss(X, LABELS) for loss in losses))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (1.01, ValueError), ("0.4", TypeError)])
def test_a_limit_that_is_no_cosine(kind, limit, error):
    with pytest.raises(error, match="drop_similar_negatives must"):
        kind(C, D, drop_similar_negatives=limit)
