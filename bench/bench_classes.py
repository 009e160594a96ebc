"""The class log-sum-exp: −log P(label) with both gradients, and without, against peers and the products alone."""

import json
import subprocess
import sys

import pytest
import torch

from robustdml_ops.python_ref import arcface_loss, class_log_sum_exp

from .workloads import CENTERS, Shape, Workload

LARGE = Shape(256, 100_000, 128)
SMALL = Shape(64, 3000, 32)
STEPS = [
    "robustdml/class-lse",
    "pml/proxy-nca",
    "torch/cross_entropy",
    "torch/linear_cross_entropy",
    "torch/linear_cross_entropy one chunk",
]
MARGINS = ["robustdml/arcface", "pml/arcface"]


def check(contender: str) -> None:
    """What is timed computes what the reference does, value and gradients; PyTorch's, on vectors not normalised."""
    workload = Workload(SMALL)
    X, P = (tensor.detach().double().requires_grad_() for tensor in (workload.embeddings, workload.proxies))
    y = workload.labels
    if contender in MARGINS:
        truth = arcface_loss(X, y, P)
    elif contender.startswith("torch/"):
        truth = torch.nn.functional.cross_entropy(X @ P.t(), y)
    elif "soft-triple" in contender:
        centers = P.view(-1, CENTERS, SMALL.D)
        options = {"scale": 20.0, "pooling": "softmax", "gamma": 0.1, "target_bias": -0.2}
        lse, target = class_log_sum_exp(X, centers, y % len(centers), **options)
        truth = (lse - target).mean()
    else:
        lse, target = class_log_sum_exp(X, P, y, scale=2.0)
        truth = (lse - target).mean()
    dX, dP = torch.autograd.grad(truth, (X, P))
    exact = [truth, dX, dP.t() if contender in MARGINS else dP]
    for mine, value in zip(workload.contender(contender)(), exact, strict=True):
        torch.testing.assert_close(mine.double(), value, rtol=1e-4, atol=1e-4 * float(value.detach().abs().max()))


def require(contender: str) -> None:
    if contender.startswith("torch/linear") and not hasattr(torch.nn.functional, "linear_cross_entropy"):
        pytest.skip(f"torch {torch.__version__} has no linear_cross_entropy")


@pytest.mark.parametrize("contender", STEPS)
def test_step(timed, contender):
    require(contender)
    check(contender)
    workload = Workload(LARGE)
    timed(
        workload.contender(contender),
        workload.products(sweeps=2),
        group=f"class LSE, {LARGE}",
        contender=contender,
        rounds=9 if contender.startswith("robustdml") else 5,
        flops=workload.flops(sweeps=2),
        bytes=workload.bytes(),
    )


@pytest.mark.parametrize("contender", MARGINS)
def test_arcface(timed, contender):
    """Class weights (D, C), as the peer stores them."""
    check(contender)
    workload = Workload(LARGE)
    timed(
        workload.contender(contender),
        workload.products(sweeps=2),
        group=f"ArcFace, {LARGE}",
        contender=contender,
        rounds=9 if contender.startswith("robustdml") else 5,
        flops=workload.flops(sweeps=2),
        bytes=workload.bytes(),
    )


def test_soft_triple(timed):
    check("robustdml/class-lse soft-triple")
    workload = Workload(LARGE)
    timed(
        workload.contender("robustdml/class-lse soft-triple"),
        workload.products(sweeps=2),
        group=f"class LSE, {CENTERS} centres a class, {LARGE} rows",
        contender="robustdml/class-lse soft-triple",
        flops=workload.flops(sweeps=2),
        bytes=workload.bytes(),
    )


def test_without_gradients(timed):
    """A filter's P_clean: one product, and the logits that nobody keeps."""
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
def test_memory(benchmark, contender):
    """Peak memory in a process of its own; the time that is kept is that of the whole process and means nothing."""
    command = [sys.executable, "-m", f"{__package__}.memory", contender, *map(str, (LARGE.B, LARGE.C, LARGE.D))]
    benchmark.group = f"memory, {LARGE}"
    out = benchmark.pedantic(lambda: subprocess.run(command, capture_output=True, text=True, check=True), rounds=1)
    benchmark.extra_info.update(contender=contender, **json.loads(out.stdout))
