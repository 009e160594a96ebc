"""Softmax losses over classes with targets of several classes, and without negatives that are similar."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from python_ref import angular_margin, class_log_sum_exp, own_class_limits, pooled_similarity, soft_cross_entropy
from robustdml_ops import losses
from robustdml_ops.ops import ABSENT
from robustdml_ops.optim import ProxySGD

B, C, D, K = 13, 17, 5, 3


def adaface(C, **options):
    loss_function = losses.AdaFaceLoss(C, D, 0.4, 9.0, **options)
    loss_function.mean_length.fill_(2)
    loss_function.length_deviation.fill_(0.5)
    return loss_function.eval()  # the running mean stays


def by_quality(s, module, X):
    z = (module.concentration * (X.detach().norm(dim=1) - 2) / 0.501).clamp(-1, 1)[:, None]
    angles = (s.detach().acos() - 0.4 * z).clamp(1e-3, math.pi - 1e-3)
    inner = torch.isclose(angles, s.detach().acos() - 0.4 * z)
    moved = torch.where(inner, s * (0.4 * z).cos() + (1 - s**2).sqrt() * (0.4 * z).sin(), angles.cos())
    return moved - 0.4 * z - 0.4


# A loss of C classes, its scale, and the cosine of a label with its margin.
LOSSES = {
    "normalized softmax": (lambda C, **options: losses.NormalizedSoftmaxLoss(C, D, 0.2, **options), 5, lambda s, *_: s),
    "proxy-nca": (lambda C, **options: losses.ProxyNCALoss(C, D, 3.0, **options), 6, lambda s, *_: s),
    "soft triple": (lambda C, **options: losses.SoftTripleLoss(C, D, 2, 7.0, **options), 7, lambda s, *_: s - 0.01),
    "cosface": (lambda C, **options: losses.CosFaceLoss(C, D, 0.3, 8.0, **options), 8, lambda s, *_: s - 0.3),
    "margins": (
        lambda C, **options: losses.CosFaceLoss(C, D, nn.Parameter(torch.linspace(0, 0.5, C).double()), 8.0, **options),
        8,
        lambda s, module, X: s - module.margin,
    ),
    "arcface": (
        lambda C, **options: losses.ArcFaceLoss(C, D, 100.0, 9.0, **options),
        9,
        lambda s, *_: angular_margin(s, math.radians(100)),
    ),
    "centres": (
        lambda C, **options: losses.SubCenterArcFaceLoss(C, D, 30.0, 9.0, 2, **options),
        9,
        lambda s, *_: angular_margin(s, math.radians(30)),
    ),
    "adaface": (adaface, 9, by_quality),
}
POOLING = {"soft triple": ("softmax", 0.1), "centres": ("max",)}


def batch():
    """Up to three classes of a sample, with weights; one sample has none, and two classes have no sample."""
    torch.manual_seed(3)
    labels = torch.rand(B, C - 2).argsort(1)[:, :K]
    labels[torch.rand(B, K) < 0.3] = ABSENT
    labels[2] = ABSENT
    weights = torch.rand(B, K, dtype=torch.float64)
    return torch.randn(B, D, dtype=torch.float64).requires_grad_(), labels, weights.requires_grad_()


def made(name, **options):
    torch.manual_seed(1)
    return LOSSES[name][0](C, reduction="none", **options).double()


def cosines(name, module, X):
    """With the classes, pooled over their centres."""
    rows = module._class_matrix()
    centers = rows if module.centers is None else rows.reshape(-1, module.centers, D)
    return pooled_similarity(X, centers, *POOLING.get(name, ()))


def dense(name, module, X, labels, weights, drop):
    s = cosines(name, module, X)
    _, scale, moved = LOSSES[name]
    if drop == "own":
        drop = own_class_limits(s, labels, D)
        assert 0.1 < (s > drop[:, None]).double().mean() < 0.8
    return soft_cross_entropy(s, moved(s, module, X), labels, weights, scale, math.inf if drop is None else drop)


def once_and_twice(loss, inputs):
    """The loss, its gradients, and those of their squared length."""
    upstream = torch.linspace(1, 2, loss.numel(), dtype=loss.dtype).view_as(loss)
    first = torch.autograd.grad(loss, inputs, upstream, create_graph=True)
    penalty = sum(gradient.square().sum() for gradient in first)
    return loss, *first, *torch.autograd.grad(penalty, inputs)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("drop", [None, 0.1, "own"])
@pytest.mark.parametrize("name", LOSSES)
def test_equal_to_the_dense_loss_with_both_derivatives(name, drop, backend):
    module = made(name, backend=backend, drop_similar_negatives=drop)
    X, labels, weights = batch()
    if drop == "own":  # cosines about what chance may bring
        for rows in (X, getattr(module, module.matrix_name)):
            rows.data = torch.randn_like(rows) + 3
    inputs = [X, weights, *module.parameters()]
    found = once_and_twice(module(X, labels, label_weights=weights), inputs)
    expected = once_and_twice(dense(name, module, X, labels, weights, drop), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    one = labels.amax(1).clamp(min=0)
    inputs = [X, *module.parameters()]
    found = once_and_twice(module(X, one), inputs)
    expected = once_and_twice(dense(name, module, X, one[:, None], torch.ones(B, 1).double(), drop), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_equal_to_cross_entropy_with_probabilities():
    X, _, _ = batch()
    module = losses.NormalizedSoftmaxLoss(C, D, 0.1).double()
    probabilities = torch.rand(B, C).double() * (torch.rand(B, C) < 0.2)  # their sums are not 1
    expected = nn.functional.cross_entropy(module.get_logits(X), probabilities)
    found = module(X, probabilities.to_sparse())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    values, places = probabilities.topk(8)
    torch.testing.assert_close(module(X, places, label_weights=values), expected, rtol=1e-12, atol=0)
    gradients = (torch.autograd.grad(loss, (X, module.W)) for loss in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("several", [False, True])
def test_sampled_negatives(several):
    """The dense loss of the drawn classes, which stand for several each."""
    X, labels, weights = batch()
    if not several:
        labels = labels.amax(1).clamp(min=0)
    module = losses.NormalizedSoftmaxLoss(40, D, 0.2, negative_share=0.1, drop_similar_negatives=0.2).double()
    state = module.negatives.state.clone()
    drawn = module.negatives.draw(labels, 40)
    module.negatives.state.copy_(state)
    rows = module.W.t()[drawn.classes]
    given = {"bias": drawn.weights(torch.float64).log(), "drop_similar_negatives": 0.2}
    lse, target = class_log_sum_exp(X, rows, drawn.labels, 5.0, **given)
    if several:
        found = module(X, labels, label_weights=weights)
        terms = (lse[:, None] - target).masked_fill(labels == ABSENT, 0) * weights
        expected = terms.sum() / B
        assert drawn.classes[drawn.labels[labels != ABSENT]].equal(labels[labels != ABSENT])
    else:
        found, expected = module(X, labels), (lse - target).mean()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    gradients = (torch.autograd.grad(loss, (X, module.W)) for loss in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize(
    "make", [partial(losses.ArcFaceLoss, C, D, 20.0, 9.0), partial(losses.ProxyAnchorLoss, C, D, alpha=7.0)]
)
def test_an_optimiser_in_the_sweep_takes_the_same_step(make, share, backend):
    X, labels, weights = batch()
    matrices = []
    for kind in (torch.optim.SGD, ProxySGD):
        torch.manual_seed(1)
        module = make(drop_similar_negatives=0.2, negative_share=share, backend=backend).double()
        optimizer = kind(module.parameters() if kind is torch.optim.SGD else module, lr=0.3)
        module(X, labels, label_weights=weights.detach()).backward()
        optimizer.step()
        matrices.append(module._class_parameter().detach())
    torch.testing.assert_close(*matrices, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_samples_of_weight_0_and_none_at_all(name):
    X, labels, weights = batch()
    module = made(name, drop_similar_negatives=-0.99)
    kept = (torch.arange(B) % 2).double()
    found = module(X, labels, label_weights=weights, sample_weights=kept)
    torch.testing.assert_close(found[1::2], module(X[1::2], labels[1::2], label_weights=weights[1::2]))
    assert (found[::2] == 0).all()
    assert found[2] == 0
    assert module(X, labels)[2] == 0  # no class at all, and no negative is left
    nothing = module(X[:0], labels[:0])
    nothing.sum().backward()
    assert nothing.shape == (0,)


def test_refusals():
    X, labels, weights = batch()
    softmax = losses.NormalizedSoftmaxLoss(C, D).double()
    for loss_function, given, error, message in (
        (softmax, {"labels": labels[:, 0].clamp(min=0), "label_weights": weights}, ValueError, "leave them out beside"),
        (losses.ProxyNCALoss(C, D, ignore_index=3), {"labels": labels}, ValueError, "fill them up with ops.ABSENT"),
        (losses.ProxyAnchorLoss(C, D), {"labels": labels.repeat(2, 1)}, ValueError, r"labels must have shape \(13,\)"),
    ):
        with pytest.raises(error, match=message):
            loss_function(X, **given)
