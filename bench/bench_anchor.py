"""The Proxy-Anchor family: one step (loss, both gradients) against peers and against the matrix products alone."""

import pytest
import torch

from robustdml_ops.python_ref import proxy_anchor_loss, smooth_proxy_anchor_loss

from .families import FAMILIES, assert_same
from .workloads import DROPPED, Shape, Workload

LARGE = Shape(256, 100_000, 128)
WIDE, HUGE = Shape(256, 200_000, 512), Shape(256, 1_000_000, 128)
AUTOCAST = " autocast"

# contender, shape, sweeps over the similarities, products of the confidence head, passes over B×C confidences
PROXY_ANCHOR = [
    *((contender, LARGE, 1, 0, 0) for contender in FAMILIES["proxy-anchor"].contenders("proxy-anchor")),
    ("robustdml/adaptive", LARGE, 1, 0, 0),
    ("robustdml/proxy-anchor none", LARGE, 2, 0, 0),
    ("robustdml/proxy-anchor dropped", LARGE, 1, 0, 0),
    ("robustdml/proxy-anchor", WIDE, 1, 0, 0),
    ("robustdml/proxy-anchor autocast", LARGE, 1, 0, 0),
    ("robustdml/proxy-anchor autocast", WIDE, 1, 0, 0),
    ("robustdml/proxy-anchor", HUGE, 1, 0, 0),
]
SMOOTH = [
    ("robustdml/smooth dense", LARGE, 1, 0, 2),
    ("torch/smooth dense", LARGE, 1, 0, 2),
    ("compile/smooth dense", LARGE, 1, 0, 2),
    ("robustdml/smooth factored", LARGE, 1, 2, 0),
]


def check(contender: str) -> None:
    """Ours agrees with the reference at a small size: value and gradients."""
    amp = contender.endswith(AUTOCAST)
    workload = Workload(Shape(64, 3000, 32), amp=amp)
    ours = workload.contender(contender.removesuffix(AUTOCAST))()
    X, P = (tensor.detach().double().requires_grad_() for tensor in (workload.embeddings, workload.proxies))
    if "smooth" in contender:
        truth = smooth_proxy_anchor_loss(X, P, workload.confidences.double())
    else:
        limit = DROPPED if "dropped" in contender else None
        truth = proxy_anchor_loss(X, P, workload.labels, drop_similar_negatives=limit)
    if "adaptive" in contender:
        truth = truth + 1 / 0.1
    assert_same(ours, [truth.detach(), *torch.autograd.grad(truth, (X, P))], 2e-2 if amp else 1e-4)


@pytest.mark.parametrize(("contender", "shape", "sweeps", "logits", "passes"), PROXY_ANCHOR + SMOOTH, ids=str)
def test_step(timed, contender, shape, sweeps, logits, passes):
    who, _, what = contender.partition("/")
    check(f"robustdml/{what}")
    workload = Workload(shape, amp=contender.endswith(AUTOCAST))
    step = workload.contender(contender.removesuffix(AUTOCAST))
    if who != "robustdml":
        assert_same(step(), workload.contender(f"robustdml/{what}")())
    seconds_each = 0.2 if who == "robustdml" else 2.0
    rounds = 9 if shape.C * shape.D * seconds_each < 1e7 else 5
    timed(
        step,
        workload.products(sweeps, logits),
        group=f"{'smooth' if 'smooth' in contender else 'proxy-anchor'}, {shape}",
        contender=contender,
        rounds=rounds,
        flops=workload.flops(sweeps, logits),
        bytes=workload.bytes(passes),
    )


@pytest.mark.parametrize(
    ("contender", "shape"),
    [
        ("robustdml/proxy-anchor", LARGE),
        ("pml/proxy-anchor", LARGE),
        ("robustdml/proxy-anchor", WIDE),
        ("robustdml/proxy-anchor", HUGE),
        ("robustdml/smooth factored", LARGE),
        ("robustdml/smooth dense", LARGE),
        ("robustdml/adaptive", LARGE),
    ],
    ids=str,
)
def test_memory(in_own_process, contender, shape):
    sizes = (shape.B, shape.C, shape.D)
    in_own_process("memory", contender, *sizes, group=f"memory, {shape}", contender=contender)
