"""PRISM: what a verdict costs by vMF-Sim, against AvgSim, and against the step of the loss that it protects."""

from itertools import count

import pytest
import torch
from torch.nn.functional import normalize

from robustdml_ops.python_ref.prism import average_similarity, log_p_clean, vmf_similarity
from robustdml_ops.robust import PRISM

from .device import DEVICE
from .workloads import Shape, Workload

LARGE = Shape(256, 100_000, 128)
ROWS_PER_CLASS = 4
SIMILARITIES = ["average", "vmf"]


def filled(similarity: str, shape: Shape, threshold: str = "smooth-top-r", preset: str | None = None) -> PRISM:
    """A filter whose bank has rows of every class, and whose vMF-Sim has begun."""
    torch.manual_seed(0)
    vmf = {"vmf_start": 0} if similarity == "vmf" else {}
    rows = ROWS_PER_CLASS * shape.C
    prism = PRISM(shape.C, shape.D, similarity, 0.5, threshold, memory_size=rows, preset=preset, **vmf).to(DEVICE)
    labels = torch.arange(shape.C, device=DEVICE).repeat(ROWS_PER_CLASS)
    for part in labels.split(100_000):
        prism.enqueue(torch.randn(len(part), shape.D, device=DEVICE), part, torch.ones_like(part, dtype=torch.bool))
    return prism


def check(similarity: str) -> None:
    """What is timed scores as the paper does."""
    shape = Shape(16, 50, 16)
    prism = filled(similarity, shape, preset="paper")
    steps(prism, shape)()
    V, y_V = prism.bank.features.double().cpu(), prism.bank.labels.cpu()
    X, labels = torch.randn(shape.B, shape.D), torch.randint(shape.C, (shape.B,))
    reference = average_similarity if similarity == "average" else vmf_similarity
    expected = log_p_clean(reference(X.double(), V, y_V, shape.C), labels)
    scores = prism.log_p_clean(X.to(DEVICE), labels.to(DEVICE)).double().cpu()
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


def steps(prism: PRISM, shape: Shape):
    """Score, threshold, enqueue, and the refresh of the classes that were touched."""
    batches = [
        (normalize(torch.randn(shape.B, shape.D, device=DEVICE)), torch.randint(shape.C, (shape.B,), device=DEVICE))
        for _ in range(16)
    ]
    numbers = count()

    def step() -> None:
        X, labels = batches[next(numbers) % len(batches)]
        prism.enqueue(X, labels, prism(X, labels).keep)

    return step


@pytest.mark.parametrize("threshold", ["smooth-top-r", "per-class"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_against_the_loss(timed, similarity, threshold):
    """The "floor" is the step of the loss: forward and backward of Proxy-Anchor."""
    check(similarity)
    loss = Workload(LARGE, DEVICE).contender("robustdml/proxy-anchor")
    timed(
        steps(filled(similarity, LARGE, threshold), LARGE),
        loss,
        group=f"PRISM step, {LARGE}; the floor is a step of Proxy-Anchor",
        contender=f"robustdml/{similarity}, {threshold}",
        rounds=15,
    )


def test_vmf_against_average(timed):
    """The "floor" is the whole step by AvgSim."""
    for similarity in SIMILARITIES:
        check(similarity)
    timed(
        steps(filled("vmf", LARGE), LARGE),
        steps(filled("average", LARGE), LARGE),
        group=f"PRISM step, {LARGE}; the floor is the step by AvgSim",
        contender="robustdml/vmf",
        rounds=40,
    )


def test_scores(timed):
    """The floor is the one product."""
    prism, workload = filled("vmf", LARGE), Workload(LARGE, DEVICE)
    X, labels = workload.embeddings.detach(), workload.labels
    timed(
        lambda: prism.log_p_clean(X, labels),
        workload.products(gradients=False),
        group=f"log P_clean, {LARGE}",
        contender="robustdml/vmf",
        rounds=30,
        flops=workload.flops(gradients=False),
    )
