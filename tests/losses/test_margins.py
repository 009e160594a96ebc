"""Margins of classes, of samples, and of a module, in the losses with a margin on the label's logit."""

import math
import warnings

import pytest
import torch
from torch import nn

from python_ref import adaface_loss, arcface_loss, cosface_loss
from robustdml_ops.losses import AdaFaceLoss, ArcFaceLoss, CosFaceLoss, ProxyAnchorLoss, SubCenterArcFaceLoss
from robustdml_ops.optim import grow_classes

B, C, D = 23, 7, 5
LOSSES = {"cosface": (CosFaceLoss, 0.25), "arcface": (ArcFaceLoss, 30.0), "centres": (SubCenterArcFaceLoss, 30.0)}


def batch(dtype=torch.float64):
    torch.manual_seed(2)
    return torch.randn(B, D, dtype=dtype).requires_grad_(), torch.randint(C, (B,))


def made(kind, margin, dtype, **options):
    torch.manual_seed(1)
    return kind(C, D, margin, 20.0, **options).to(dtype)


def value_and_gradients(loss_function, dtype, **options):
    X, labels = batch(dtype)
    loss = loss_function(X, labels, **options)
    return loss, *torch.autograd.grad(loss.sum(), (X, loss_function.W))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_a_constant_is_one_number(name, dtype):
    kind, margin = LOSSES[name]
    expected = value_and_gradients(made(kind, margin, dtype), dtype)
    of_classes = torch.full((C,), margin, dtype=dtype)
    of_samples = torch.full((B,), margin, dtype=dtype)
    for found in (
        value_and_gradients(made(kind, of_classes, dtype), dtype),
        value_and_gradients(made(kind, nn.Parameter(of_classes), dtype), dtype),
        value_and_gradients(made(kind, 0.0, dtype), dtype, margins=of_samples),
    ):
        torch.testing.assert_close(found, expected)


def test_margins_of_samples():
    X, labels = batch()
    margins = torch.linspace(-0.2, 0.5, B, dtype=torch.float64).requires_grad_()
    loss_function = made(CosFaceLoss, 0.35, torch.float64, reduction="none", negative_share=0.999)
    dense = cosface_loss(X, labels, loss_function.W.t(), margins[:, None], 20.0, reduction="none")
    found = loss_function.eval()(X, labels, margins=margins)
    torch.testing.assert_close(found, dense)
    upstream = torch.linspace(1, 2, B, dtype=torch.float64)
    wanted = (X, loss_function.W, margins)
    torch.testing.assert_close(*(torch.autograd.grad(loss, wanted, upstream) for loss in (found, dense)))
    assert torch.isfinite(loss_function.train()(X, labels, margins=margins)).all()


def test_a_module_learns_margins_in_degrees():
    class OfLength(nn.Module):
        def __init__(self):
            super().__init__()
            self.degrees = nn.Parameter(torch.tensor(9.0, dtype=torch.float64))

        def forward(self, embeddings, labels):
            return self.degrees * embeddings.detach().norm(dim=1)

    X, labels = batch()
    loss_function = made(ArcFaceLoss, OfLength(), torch.float64)
    degrees = loss_function.margin.degrees
    found = loss_function(X, labels)
    margins = degrees * X.detach().norm(dim=1, keepdim=True)
    expected = arcface_loss(X, labels, loss_function.W.t()[:, None], margins, 20.0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, degrees) for loss in (found, expected)))


def test_margins_are_saved_and_grow():
    margins = torch.arange(C, dtype=torch.float64)
    loss_function = made(CosFaceLoss, margins, torch.float64)
    other = made(CosFaceLoss, torch.zeros(C), torch.float64)
    other.load_state_dict(loss_function.state_dict())
    assert torch.equal(other.margin, margins)
    for given in (margins, nn.Parameter(margins)):
        grown = made(SubCenterArcFaceLoss, given, torch.float64)
        before = grown.margin.clone()
        grow_classes(grown, None, torch.tensor([-1, 4, 2]))
        expected = torch.stack([before.mean(), before[4], before[2]])
        torch.testing.assert_close(grown.margin.detach(), expected.detach())
        assert grown(batch()[0], torch.randint(3, (B,))).isfinite()


def test_wrong_margins():
    X, labels = batch()
    for margin, error, message in (
        (torch.zeros(C + 1), ValueError, f"margin must be a floating-point vector of length {C}"),
        (torch.full((C,), float("nan")), ValueError, "margin has NaN or inf"),
        (float("inf"), ValueError, "margin must be finite"),
    ):
        with pytest.raises(error, match=message):
            made(CosFaceLoss, margin, torch.float64)
    loss_function = made(ArcFaceLoss, 20.0, torch.float64)
    with pytest.raises(ValueError, match=f"margins must be a floating-point vector of length {B}"):
        loss_function(X, labels, margins=torch.zeros(3))
    with pytest.raises(ValueError, match="margins have NaN or inf"):
        loss_function(X, labels, margins=torch.full((B,), float("inf"), dtype=torch.float64))
    with pytest.raises(TypeError, match="ProxyAnchorLoss has no argument 'margins'"):
        ProxyAnchorLoss(C, D)(X.float(), labels, margins=torch.zeros(B))
    with pytest.raises(TypeError, match="AdaFaceLoss has no argument 'margins'"):
        AdaFaceLoss(C, D)(X, labels, margins=torch.zeros(B))
    with pytest.raises(ValueError, match="momentum must be at most 1, got 2"):
        AdaFaceLoss(C, D, momentum=2)


@pytest.mark.parametrize("kind", [ArcFaceLoss, SubCenterArcFaceLoss])
def test_one_warning_of_a_margin_in_radians(kind):
    with pytest.warns(UserWarning, match=r"margin=0.5 is in degrees here.* take 28.6") as warned:
        loss_function = kind(C, D, margin=0.5)
    assert len(warned) == 1
    assert loss_function.margin == math.radians(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for margin in (0.0, 1, 28.6, torch.full((C,), 0.5)):
            kind(C, D, margin=margin)


def test_running_lengths_of_two_byte_classes_are_followed():
    """In bfloat16 a mean of 20 would stay, whatever a batch adds."""
    whole, short = AdaFaceLoss(C, D), AdaFaceLoss(C, D).bfloat16().requires_grad_(False)
    for _ in range(3):
        X, labels = 5 * torch.randn(B, D), torch.randint(C, (B,))
        whole(X, labels)
        short(X, labels)
    assert short.W.dtype == torch.bfloat16
    assert whole.mean_length != 20
    assert torch.equal(short.mean_length, whole.mean_length)
    assert torch.equal(short.length_deviation, whole.length_deviation)


def test_adaface_follows_the_lengths_of_samples_that_are_present():
    X, labels = batch()
    weights = (torch.arange(B) % 3 > 0).double()
    loss_function = AdaFaceLoss(C, D, momentum=0.5).double()
    loss = loss_function(X, labels, sample_weights=weights)
    lengths = X.detach()[weights > 0].norm(dim=1)
    mean, deviation = 10 + lengths.mean() / 2, 50 + lengths.std() / 2
    torch.testing.assert_close(loss_function.mean_length, mean)
    torch.testing.assert_close(loss_function.length_deviation, deviation)
    torch.testing.assert_close(
        loss, adaface_loss(X, labels, loss_function.W.t(), mean, deviation, sample_weights=weights)
    )
    loss_function(X[:1], labels[:1])  # one sample has no deviation
    loss_function.eval()(X, labels)
    torch.testing.assert_close(loss_function.mean_length, mean)
