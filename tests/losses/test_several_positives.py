"""Proxy-Anchor of samples with several classes, and weights of these, against the dense loss."""

import pytest
import test_class_targets
import torch
from test_class_targets import B, C, D, once_and_twice

from python_ref import proxy_anchor_loss
from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss
from robustdml_ops.losses.sampling import draw_classes
from robustdml_ops.ops import ABSENT, AnchorBiases, LabelSets, anchor_lse

ALPHA = 7.0


def batch():
    """With constant weights, some of them 0."""
    X, labels, weights = test_class_targets.batch()
    weights = weights.detach()
    weights[::4, 0] = 0
    return X, labels, weights


def made(**options):
    return ProxyAnchorLoss(C, D, alpha=ALPHA, **options).double()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("reduction", "drop"), [("mean", 0.1), ("none", None)])
def test_equal_to_the_dense_loss_with_both_derivatives(reduction, drop, weighted, backend):
    settings = {"reduction": reduction, "drop_similar_negatives": drop}
    module = made(**settings, backend=backend)
    X, labels, weights = batch()
    weights = {"label_weights": weights if weighted else None}
    u = torch.rand(B, dtype=torch.float64)
    u[::5] = 0
    weights["sample_weights"] = u.requires_grad_()
    losses = module(X, labels, **weights), proxy_anchor_loss(X, module.proxies, labels, ALPHA, **weights, **settings)
    found, expected = (once_and_twice(loss, [X, u, module.proxies]) for loss in losses)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_one_class_listed_as_several_is_that_class(backend):
    """Twice in a row with halved weights, too."""
    module = made(backend=backend)
    X, labels, _ = batch()
    one = labels.amax(1).clamp(min=0)
    expected = module(X, one)
    torch.testing.assert_close(module(X, one[:, None]), expected, rtol=1e-12, atol=0)
    halves = torch.full((B, 2), 0.5, dtype=torch.float64)
    twice = module(X, torch.stack([one, one], 1), label_weights=halves)
    torch.testing.assert_close(twice, expected, rtol=1e-12, atol=0)


def test_the_adaptive_loss_with_one_margin_is_proxy_anchor_with_it():
    X, labels, weights = batch()
    module = AdaptiveProxyAnchorLoss(C, D, 0.125, ALPHA).double()
    expected = proxy_anchor_loss(X, module.proxies, labels, ALPHA, 0.125, label_weights=weights) + 8
    torch.testing.assert_close(module(X, labels, label_weights=weights), expected, rtol=1e-9, atol=0)


def test_sampled_negatives(backend):
    """All classes of all samples are drawn; the others stand for more."""
    module = made(negative_share=0.5, negative_seed=3, backend=backend)
    X, labels, weights = (values[:3] for values in batch())
    labels[0] = ABSENT
    found = module(X, labels, label_weights=weights)
    absent = labels == ABSENT
    known = torch.where(absent, labels.amax(1, keepdim=True).clamp(min=0), labels).flatten()
    drawn = draw_classes(known, C, 0.5, torch.tensor([3, 0]))
    places = drawn.labels.view_as(labels).masked_fill(absent, ABSENT)
    each = proxy_anchor_loss(
        X, module.proxies[drawn.classes], places, ALPHA, reduction="none", label_weights=weights.masked_fill(absent, 0)
    )
    alone = proxy_anchor_loss(
        X, module.proxies[drawn.classes], places, ALPHA, 0.1, reduction="none", label_weights=weights,
        drop_similar_negatives=-0.9999999,
    )  # fmt: skip
    M = len(drawn.classes)
    expected = alone.sum() + ((each - alone) * M / C * drawn.weights(torch.float64)).sum()
    assert M < C
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_bad_input():
    X, labels, weights = batch()
    with pytest.raises(ValueError, match=r"constants of ProxyAnchorLoss: pass label_weights.detach\(\)"):
        made()(X, labels, label_weights=weights.requires_grad_())
    with pytest.raises(ValueError, match=r"labels \(B, K\) beside per_class=True.*per_class=False"):
        AdaptiveProxyAnchorLoss(C, D, per_class=True).double()(X, labels)
    with pytest.raises(TypeError, match="label_weights"):
        SmoothProxyAnchorLoss(C, D).double()(X, torch.rand(B, C).double(), label_weights=weights)
    bias = torch.zeros(B).double()
    sets = LabelSets.of(labels.clamp(min=-1), weights=weights.detach().float())
    with pytest.raises(
        ValueError, match=r"weights of sets must have the shape \(13, 3\).*got \(13, 3\) of torch.float32"
    ):
        anchor_lse(X, torch.rand(C, D).double(), sets, AnchorBiases(bias, bias), alpha=1.0)
    beyond, twice = torch.full_like(labels, -1), torch.full_like(labels, 5)
    beyond[3, 0] = 99
    for wrong, error, message in (
        (beyond, IndexError, r"labels\[3, 0\] = 99 is outside 0 … 16"),
        (twice, ValueError, "labels must be distinct for each sample, got class 5 twice"),
    ):
        with pytest.raises(error, match=message):
            anchor_lse(X, torch.rand(C, D).double(), LabelSets.of(wrong), AnchorBiases(bias, bias), alpha=1.0)
