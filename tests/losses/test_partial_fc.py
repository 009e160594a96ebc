"""Each row of the table in docs/large-classes.md: settings of insightface's arcface_torch give its steps here."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, linear, normalize

from robustdml_ops.losses import ArcFaceLoss, CosFaceLoss, start_class_matrix
from robustdml_ops.losses.sampling import draw_classes
from robustdml_ops.optim import ProxySGD

C, D, B = 40, 8, 16


def combined_margin(cosines, labels, m1, m2, m3, s=64.0, threshold=0.0):
    """``CombinedMarginLoss`` of arcface_torch, without writing in place."""
    own = torch.zeros_like(cosines, dtype=torch.bool).scatter(1, labels[:, None], True)
    if threshold > 0:  # there their logits become 0
        cosines = cosines.masked_fill((cosines > threshold) & ~own, -torch.inf)
    moved = torch.cos(m1 * cosines.clamp(-1, 1).acos() + m2) - m3
    return cross_entropy(s * torch.where(own, moved, cosines), labels)


def batches(count=4):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        X = torch.randn(B, D, generator=generator, dtype=torch.float64, requires_grad=True)
        yield X, torch.randint(C, (B,), generator=generator)


def head(weight):
    """The init of the head: N(0, 0.01)."""
    return torch.nn.init.normal_(weight, std=0.01)


MARGINS = {
    "margin_list (1, 0.5, 0)": ((1.0, 0.5, 0.0), lambda **more: ArcFaceLoss(C, D, math.degrees(0.5), 64, **more)),
    "margin_list (1, 0, 0.4)": ((1.0, 0.0, 0.4), lambda **more: CosFaceLoss(C, D, 0.4, 64, **more)),
}


@pytest.mark.parametrize("row", MARGINS)
@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_margins_filter_and_optimiser(row, threshold):
    """SGD 0.1, momentum 0.9, weight decay 5e-4, warm-up, then a polynomial decay; the head N(0, 0.01)."""
    margins, make = MARGINS[row]
    loss_function = make(weight_init_func=head, drop_similar_negatives=threshold or None).double()
    weight = loss_function.W.detach().t().clone().requires_grad_()
    settings = {"momentum": 0.9, "weight_decay": 5e-4}
    ours, theirs = ProxySGD(loss_function, lr=0.1, **settings), torch.optim.SGD([weight], lr=0.1, **settings)
    schedulers = [
        torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2),
                torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=4, power=2),
            ],
            milestones=[2],
        )
        for optimizer in (ours, theirs)
    ]
    for X, labels in batches():
        other = X.detach().clone().requires_grad_()
        expected = combined_margin(linear(normalize(other), normalize(weight)), labels, *margins, threshold=threshold)
        found = loss_function(X, labels)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        theirs.zero_grad()
        expected.backward()
        found.backward()
        torch.testing.assert_close(X.grad, other.grad, rtol=1e-7, atol=1e-9)
        for step in (ours, theirs, *schedulers):
            step.step()
        torch.testing.assert_close(loss_function.W.detach().t(), weight.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_sample_rate(rate):
    """Partial FC takes ⌊rate·C⌋ classes, those of the batch among them; the logits are as they are."""
    labels = torch.arange(B)
    share = (rate * C - B) / (C - B)
    drawn = draw_classes(labels, C, share, torch.tensor([0, 0]))
    assert len(drawn.classes) == int(rate * C)
    loss_function = CosFaceLoss(C, D, 0.4, 64, negative_share=share, negative_correction=False).double()
    X = torch.randn(B, D, dtype=torch.float64)
    cosines = linear(normalize(X), normalize(loss_function.W.t()[drawn.classes]))
    torch.testing.assert_close(loss_function(X, labels), combined_margin(cosines, drawn.labels, 1.0, 0.0, 0.4))


def test_a_head_that_begins_as_embeddings_takes_larger_steps():
    """Rows N(0, 0.01) of D numbers have length 0.01·√D, and gradients by its reciprocal: a hundredfold at D = 512."""
    loss_function = ArcFaceLoss(C, D, weight_init_func=head)
    lengths = [loss_function.W.detach().norm(dim=0).mean()]
    start_class_matrix(loss_function, [(torch.randn(C, D), torch.arange(C))])
    lengths.append(loss_function.W.detach().norm(dim=0).mean())
    assert lengths[0] == pytest.approx(0.01 * D**0.5, rel=0.2)
    assert lengths[1] == pytest.approx(1)
