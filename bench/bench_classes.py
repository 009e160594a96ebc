"""The class log-sum-exp: −log P(label) with both gradients, and without, against peers and the products alone."""

import math

import pytest
import torch

from robustdml_ops.losses.families.class_matrix import chance_cosine
from robustdml_ops.python_ref import arcface_loss, class_log_sum_exp

from .workloads import CENTERS, DROPPED, Shape, Workload

LARGE = Shape(256, 100_000, 128)
SMALL = Shape(64, 3000, 32)
STEPS = [
    "robustdml/class-lse",
    "robustdml/class-lse dropped",
    "robustdml/class-lse two labels",
    "pml/proxy-nca",
    "torch/cross_entropy",
    "torch/linear_cross_entropy",
    "torch/linear_cross_entropy one chunk",
]
MARGINS = ["robustdml/arcface", "pml/arcface"]
# Options of a step, of which the step without them is the floor.
OPTIONS = [
    f"robustdml/{loss} {options}" for loss in ("arcface", "cosface") for options in ("own", "margins", "own margins")
]


def check(contender: str) -> None:
    """The contender agrees with the reference at a small size: value and gradients."""
    workload = Workload(SMALL)
    X, P = (tensor.detach().double().requires_grad_() for tensor in (workload.embeddings, workload.proxies))
    y = workload.labels
    if contender in MARGINS:
        truth = arcface_loss(X, y, P)
    elif contender in OPTIONS:
        truth = margin_loss(X, P, y, workload.margins, contender)
    elif contender.startswith("torch/"):
        truth = torch.nn.functional.cross_entropy(X @ P.t(), y)
    elif "soft-triple" in contender:
        centers = P.view(-1, CENTERS, SMALL.D)
        options = {"scale": 20.0, "pooling": "softmax", "gamma": 0.1, "target_bias": -0.2}
        lse, target = class_log_sum_exp(X, centers, y % len(centers), **options)
        truth = (lse - target).mean()
    elif contender.endswith("two labels"):
        lse, targets = class_log_sum_exp(X, P, torch.stack([y, (y + 1) % SMALL.C], 1), scale=2.0)
        truth = (lse - targets.mean(1)).mean()
    else:
        drop = DROPPED if contender.endswith("dropped") else torch.inf
        lse, target = class_log_sum_exp(X, P, y, scale=2.0, drop_similar_negatives=drop)
        truth = (lse - target).mean()
    dX, dP = torch.autograd.grad(truth, (X, P))
    exact = [truth, dX, dP.t() if contender in MARGINS + OPTIONS else dP]
    for mine, value in zip(workload.contender(contender)(), exact, strict=True):
        torch.testing.assert_close(mine.double(), value, rtol=1e-4, atol=1e-4 * float(value.detach().abs().max()))


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


def require(contender: str) -> None:
    if contender.startswith("torch/linear") and not hasattr(torch.nn.functional, "linear_cross_entropy"):
        pytest.skip(f"torch {torch.__version__} has no linear_cross_entropy")


@pytest.mark.parametrize(
    ("contender", "group"),
    [
        *((contender, f"class LSE, {LARGE}") for contender in STEPS),
        *((contender, f"ArcFace, {LARGE}") for contender in MARGINS),
        ("robustdml/class-lse soft-triple", f"class LSE, {CENTERS} centres a class, {LARGE} rows"),
    ],
)
def test_step(timed, contender, group):
    require(contender)
    check(contender)
    workload = Workload(LARGE)
    timed(
        workload.contender(contender),
        workload.products(sweeps=2),
        group=group,
        contender=contender,
        rounds=9 if contender.startswith("robustdml") else 5,
        flops=workload.flops(sweeps=2),
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


@pytest.mark.parametrize("contender", ["robustdml/class-lse", "pml/proxy-nca", "torch/cross_entropy", *MARGINS])
def test_memory(in_own_process, contender):
    sizes = (LARGE.B, LARGE.C, LARGE.D)
    in_own_process("memory", contender, *sizes, group=f"memory, {LARGE}", contender=contender)
