"""Proxy-Anchor of samples with several classes, and weights of these, against the dense loss."""

import pytest
import torch

from python_ref import proxy_anchor_loss
from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss
from robustdml_ops.losses.sampling import draw_classes
from robustdml_ops.ops import ABSENT, AnchorBiases, LabelSets, anchor_lse
from robustdml_ops.optim import ProxySGD

B, C, D, K = 13, 17, 5, 3
ALPHA = 7.0


def batch(weighted):
    """Up to three classes of a sample; one sample has none, weights of 0 are among the others."""
    labels = torch.rand(B, C - 2).argsort(1)[:, :K]
    labels[torch.rand(B, K) < 0.3] = ABSENT
    labels[2] = ABSENT
    weights = torch.rand(B, K, dtype=torch.float64)
    weights[::4, 0] = 0
    return torch.randn(B, D, dtype=torch.float64).requires_grad_(), labels, weights if weighted else None


def made(**options):
    return ProxyAnchorLoss(C, D, alpha=ALPHA, **options).double()


def dense(module, X, labels, label_weights, sample_weights=None):
    settings = {"reduction": module.reduction, "drop_similar_negatives": module.drop_similar_negatives}
    return proxy_anchor_loss(
        X, module.proxies, labels, ALPHA, sample_weights=sample_weights, label_weights=label_weights, **settings
    )


def once_and_twice(loss, inputs):
    """The loss, its gradients, and those of their squared length."""
    first = torch.autograd.grad(loss, inputs, torch.linspace(1, 2, loss.numel()).view_as(loss), create_graph=True)
    penalty = sum(gradient.square().sum() for gradient in first)
    return loss, *first, *torch.autograd.grad(penalty, inputs)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("reduction", "drop"), [("mean", 0.1), ("none", None)])
def test_equal_to_the_dense_loss_with_both_derivatives(reduction, drop, weighted, backend):
    module = made(reduction=reduction, drop_similar_negatives=drop, backend=backend)
    X, labels, label_weights = batch(weighted)
    u = torch.rand(B, dtype=torch.float64)
    u[::5] = 0
    u.requires_grad_()
    inputs = [X, u, module.proxies]
    found = once_and_twice(module(X, labels, sample_weights=u, label_weights=label_weights), inputs)
    expected = once_and_twice(dense(module, X, labels, label_weights, u), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_one_class_listed_as_several_is_that_class(backend):
    """Twice in a row with halved weights, too; and a sparse matrix lists classes with their weights."""
    module = made(backend=backend)
    X, labels, weights = batch(True)
    one = labels.amax(1).clamp(min=0)
    expected = module(X, one)
    torch.testing.assert_close(module(X, one[:, None]), expected, rtol=1e-12, atol=0)
    halves = torch.full((B, 2), 0.5, dtype=torch.float64)
    twice = module(X, torch.stack([one, one], 1), label_weights=halves)
    torch.testing.assert_close(twice, expected, rtol=1e-12, atol=0)
    known = weights.masked_fill(labels == ABSENT, 0)
    matrix = torch.zeros(B, C, dtype=torch.float64).scatter_add(1, labels.clamp(min=0), known)
    expected = module(X, labels, label_weights=weights)
    torch.testing.assert_close(module(X, matrix.to_sparse()), expected, rtol=1e-12, atol=0)


def test_the_adaptive_loss_with_one_margin_is_proxy_anchor_with_it():
    X, labels, weights = batch(True)
    module = AdaptiveProxyAnchorLoss(C, D, 0.125, ALPHA).double()
    expected = proxy_anchor_loss(X, module.proxies, labels, ALPHA, 0.125, label_weights=weights) + 8
    torch.testing.assert_close(module(X, labels, label_weights=weights), expected, rtol=1e-9, atol=0)


def test_sampled_negatives(backend):
    """All classes of all samples are drawn; the others stand for more."""
    module = made(negative_share=0.5, negative_seed=3, backend=backend)
    X, labels, weights = (values[:3] for values in batch(True))
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


def test_an_update_in_the_sweep_is_that_of_the_gradient(backend):
    ours, theirs = made(backend=backend), made(backend=backend)
    theirs.load_state_dict(ours.state_dict())
    fused, plain = ProxySGD(ours, lr=0.1), torch.optim.SGD(theirs.parameters(), lr=0.1)
    for loss, optimizer in ((ours, fused), (theirs, plain)):
        torch.manual_seed(5)
        X, labels, weights = batch(True)
        loss(X, labels, label_weights=weights).backward()
        optimizer.step()
    torch.testing.assert_close(ours.proxies, theirs.proxies, rtol=1e-12, atol=1e-14)


def test_bad_input():
    X, labels, weights = batch(True)
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
