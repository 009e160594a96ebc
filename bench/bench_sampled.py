"""Sampled negatives: a step over the classes of the batch and a share of the others, against all of them."""

import pytest
import torch

from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.losses.sampling import draw_classes
from robustdml_ops.python_ref import sampled_proxy_anchor_loss
from robustdml_ops.robust import OwnClassFilter

from . import large_steps
from .optimizer_steps import step_of as optimizer_step_of
from .workloads import Shape, Workload

SHAPES = [Shape(256, 689, 64), Shape(256, 20_000, 64), Shape(256, 1_000_000, 128)]
SHARES = [1.0, 0.3, 0.1, 0.03]
VERY_MANY = Shape(512, 2_000_000, 64)


def step_of(workload, share):
    """Loss, gradient of the embeddings, and rows with their gradient as an optimiser that is bound to them has them."""
    shape = workload.shape
    module = ProxyAnchorLoss(1, shape.D, negative_share=share).to(workload.device)
    module.num_classes, module.proxies = shape.C, workload.proxies
    handed = {}
    if module.negatives is not None:
        module.negatives.receiver = lambda rows, gradient: handed.update(rows=rows, gradient=gradient)

    def step():
        workload.embeddings.grad = workload.proxies.grad = None
        handed.clear()
        loss = module(workload.embeddings, workload.labels)
        loss.backward()
        return loss.detach(), workload.embeddings.grad, handed

    return step


def check(share):
    """What is timed is the reference's, of the first draw."""
    workload = Workload(Shape(64, 3000, 32))
    loss, dX, handed = step_of(workload, share)()
    X, P = (tensor.detach().double().requires_grad_() for tensor in (workload.embeddings, workload.proxies))
    drawn = draw_classes(workload.labels, 3000, share, torch.zeros(2, dtype=torch.int64, device=workload.device))
    weights = drawn.weights(torch.float64)
    exact = sampled_proxy_anchor_loss(X, P, workload.labels, drawn.classes, weights)
    gradients = torch.autograd.grad(exact, (X, P))
    assert torch.equal(handed["rows"], drawn.classes)
    for mine, truth in ((loss, exact), (dX, gradients[0]), (handed["gradient"], gradients[1][drawn.classes])):
        torch.testing.assert_close(mine.double(), truth, rtol=1e-4, atol=1e-4 * float(truth.detach().abs().max()))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_step(timed, shape, share):
    """The floor: the three products with the classes that are drawn, into fresh memory."""
    if share < 1:
        check(share)
    workload = Workload(shape)
    met = min(shape.B, shape.C) + round(share * max(0, shape.C - shape.B))
    floor = Workload(Shape(shape.B, met, shape.D))
    timed(
        step_of(workload, share),
        floor.products(),
        group=f"proxy-anchor, sampled, {shape}",
        contender=f"robustdml/proxy-anchor {share:.0%}",
        rounds=5 if shape.C > 10**5 else 50,
        flops=floor.flops(),
        bytes=floor.bytes(),
    )


@pytest.mark.parametrize("rule", ["adamw", "adagrad"])
@pytest.mark.parametrize("share", SHARES[1:])
def test_step_within_the_sweep(timed, share, rule):
    """Loss, gradients and the optimiser's step on the rows drawn; the floor is the same with all classes."""
    workload = Workload(SHAPES[-1])
    timed(
        optimizer_step_of(f"within/proxy-anchor/{rule}", workload, share),
        optimizer_step_of(f"within/proxy-anchor/{rule}", workload),
        group=f"{rule} within the sweep, sampled over all classes, {SHAPES[-1]}",
        contender=f"robustdml/proxy-anchor {rule} {share:.0%}",
        rounds=5,
    )


def check_large(contender):
    """With all classes drawn each way is one step of the whole matrix: the same losses one after another."""
    workload = Workload(Shape(32, 300, 16), "cpu")
    steps = [large_steps.step_of(one, workload, 1.0) for one in (contender, "pytorch/softmax, float32")]
    losses = [[float(step()) for _ in range(3)] for step in steps]
    exact = contender.endswith("float32")
    assert losses[0] == pytest.approx(losses[1], rel=1e-4 if exact else 3e-2)


@pytest.mark.parametrize("contender", large_steps.CONTENDERS)
@pytest.mark.parametrize("share", [0.01, 0.1])
def test_step_beside_pytorch(timed, contender, share):
    """Loss, gradients and Adagrad's step of the rows drawn; the floor: the three products with these rows."""
    check_large(contender)
    workload, met = Workload(VERY_MANY, "cpu"), round(share * VERY_MANY.C)
    floor = Workload(Shape(VERY_MANY.B, met, VERY_MANY.D), "cpu")
    timed(
        large_steps.step_of(contender, workload, share),
        floor.products(),
        group=f"softmax over {share:.0%} of the classes, with Adagrad, {VERY_MANY}",
        contender=contender,
        rounds=5,
        flops=floor.flops(),
        bytes=floor.bytes(),
    )


@pytest.mark.parametrize("judges", ["samples", "proxies"])
def test_filter_beside_a_step(timed, judges):
    """The filter of many classes, by the batch's samples or by proxies; the "floor" is the loss's step over 1 %."""
    workload = Workload(VERY_MANY, "cpu")
    X, y = workload.embeddings.detach(), workload.labels[: VERY_MANY.B // 4].repeat_interleave(4)
    classes = workload.proxies.detach() if judges == "proxies" else None
    judge = OwnClassFilter()
    assert judge(X, y, classes).keep.shape == y.shape
    timed(
        lambda: judge(X, y, classes),
        large_steps.step_of("robustdml/softmax, float32", workload, 0.01),
        group=f"own-class filter, {VERY_MANY}; the floor is a step over 1% of the classes",
        contender=f"robustdml/by {judges}",
        rounds=20,
    )
