"""Softmax over classes: loss and both gradients against peers and the bare products; and without gradients."""

import math

import pytest
import torch

from robustdml_ops.losses.families.class_matrix import chance_cosine
from robustdml_ops.python_ref import arcface_loss, class_log_sum_exp, cosface_loss

from .families import FAMILIES, assert_same
from .workloads import DROPPED, Shape, Workload

LARGE, FEWER, WIDE = Shape(256, 100_000, 128), Shape(256, 10_000, 128), Shape(512, 20_000, 512)
SMALL = Shape(64, 3000, 32)
# Ours and all rivals, at the shapes at which each family is measured; and ours alone, with options.
STEPS = [
    (contender, shape)
    for kind, shapes in {
        "normalized-softmax": (LARGE, FEWER, WIDE),
        "arcface": (LARGE, FEWER),
        "subcenter-arcface": (Shape(256, 30_000, 128),),
        "proxy-nca": (LARGE,),
        "soft-triple": (LARGE,),
    }.items()
    for shape in shapes
    for contender in FAMILIES[kind].contenders(kind)
]
STEPS += [(f"robustdml/proxy-nca {words}", LARGE) for words in ("dropped", "two labels")]
# Options of a step, of which the step without them is the floor.
OPTIONS = [
    f"robustdml/{loss} {options}" for loss in ("arcface", "cosface") for options in ("own", "margins", "own margins")
]


def check(contender: str) -> None:
    """Ours agrees with the reference at a small size: value and gradients."""
    workload = Workload(SMALL)
    X, P = (tensor.detach().double().requires_grad_() for tensor in (workload.embeddings, workload.proxies))
    kind, *words = contender.removeprefix("robustdml/").split()
    family = FAMILIES[kind]
    y, centers = workload.labels % (SMALL.C // family.centers), P.view(-1, family.centers, SMALL.D)
    if contender in OPTIONS:
        truth = margin_loss(X, P, y, workload.margins, contender)
    elif kind in ("arcface", "subcenter-arcface"):
        truth = arcface_loss(X, y, P if kind == "arcface" else centers)
    elif kind == "cosface":
        truth = cosface_loss(X, y, P)
    elif kind == "soft-triple":
        options = {"scale": 20.0, "pooling": "softmax", "gamma": 0.1, "target_bias": -0.2}
        lse, target = class_log_sum_exp(X, centers, y, **options)
        truth = (lse - target).mean()
    elif "two" in words:
        lse, targets = class_log_sum_exp(X, P, torch.stack([y, (y + 1) % SMALL.C], 1), scale=2.0)
        truth = (lse - targets.mean(1)).mean()
    else:
        drop = DROPPED if "dropped" in words else torch.inf
        lse, target = class_log_sum_exp(X, P, y, scale=family.scale, drop_similar_negatives=drop)
        truth = (lse - target).mean()
    assert_same(workload.contender(contender)(), [truth.detach(), *torch.autograd.grad(truth, (X, P))])


def margin_loss(X: torch.Tensor, P: torch.Tensor, y: torch.Tensor, margins: torch.Tensor, name: str) -> torch.Tensor:
    """ArcFace or CosFace with options, from the matrix of all cosines."""
    cosines = torch.nn.functional.normalize(X) @ torch.nn.functional.normalize(P).t()
    own = cosines.gather(1, y[:, None])
    arc = "arcface" in name
    default = math.radians(28.6) if arc else 0.35
    m = (margins[:, None].double() * (math.pi / 180 if arc else 1)) if "margins" in name else default
    moved = (own.acos() + m).cos() if arc else own - m
    limit = own.clamp(min=chance_cosine(*P.shape))
    kept = cosines.masked_fill(cosines > limit, -torch.inf) if "own" in name.split() else cosines
    return torch.nn.functional.cross_entropy(64 * kept.scatter(1, y[:, None], moved), y)


@pytest.mark.parametrize(("contender", "shape"), STEPS, ids=str)
def test_step(timed, contender, shape):
    """The floor: the three bare products of these shapes."""
    who, _, what = contender.partition("/")
    check(f"robustdml/{what}")
    workload = Workload(shape)
    step = workload.contender(contender)
    if who != "robustdml":
        assert_same(step(), workload.contender(f"robustdml/{what}")())
    timed(
        step,
        workload.products(),
        group=f"{what.split()[0]}, {shape}",
        contender=contender,
        rounds=9 if who == "robustdml" else 5,
        flops=workload.flops(),
        bytes=workload.bytes(),
    )


@pytest.mark.parametrize("C", [1000, 4000])
@pytest.mark.parametrize("contender", OPTIONS)
def test_options(timed, contender, C):
    check(contender)
    shape = Shape(256, C, 128)
    workload, plain = Workload(shape), Workload(shape)
    timed(
        workload.contender(contender),
        plain.contender(contender.split()[0]),
        group=f"options, {shape}; the floor is the step without them",
        contender=contender,
        rounds=400,
    )


def test_without_gradients(timed):
    """P_clean of a filter: one product, whose logits are not kept."""
    small = Workload(SMALL)
    torch.testing.assert_close(small.log_p_clean(), small.log_p_clean("eager"))
    workload = Workload(LARGE)
    timed(
        workload.log_p_clean,
        workload.products(gradients=False),
        group=f"class LSE without gradients, {LARGE}",
        contender="robustdml/class-lse",
        rounds=30,
        flops=workload.flops(gradients=False),
    )


@pytest.mark.parametrize(
    "contender",
    [
        f"{who}/{kind}"
        for kind in ("proxy-nca", "normalized-softmax", "arcface")
        for who in ("robustdml", "pml", "torch", "compile")
    ],
)
def test_memory(in_own_process, contender):
    sizes = (LARGE.B, LARGE.C, LARGE.D)
    in_own_process("memory", contender, *sizes, group=f"memory, {LARGE}", contender=contender)


@pytest.mark.parametrize("shape", [LARGE, WIDE], ids=str)
@pytest.mark.parametrize("kind", ["normalized-softmax", "arcface"])
def test_observed(timed, kind, shape):
    """Probability, margin and rank of each sample, from the sweep of the step."""
    observed, plain = Workload(shape), Workload(shape)
    timed(
        observed.contender(f"robustdml/{kind} observed"),
        plain.contender(f"robustdml/{kind}"),
        group=f"observed, {shape}; the floor is the plain step",
        contender=f"robustdml/{kind} observed",
        rounds=20,
    )
