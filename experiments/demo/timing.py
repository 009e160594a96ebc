"""Times of our losses and their references on one shape, after a check of values and gradients."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss as LibraryProxyAnchorLoss
from torch import Tensor

from robustdml_ops.losses import ProxyAnchorLoss, SmoothProxyAnchorLoss
from robustdml_ops.python_ref import proxy_anchor_loss, smooth_proxy_anchor_loss

OURS, LIBRARY, REFERENCE, FLOOR = (
    "robustdml_ops",
    "pytorch-metric-learning",
    "dense reference",
    "floor: three matrix products",
)
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Shape:
    """Sizes of a measurement: batch B, classes C, embedding size D."""

    batch: int = 256
    classes: int = 20_000
    size: int = 128


@dataclass(frozen=True)
class Timing:
    """Median time of the loss and both gradients."""

    loss: str  # Which loss
    implementation: str  # Whose
    milliseconds: float  # Median of the repetitions


def measure(shape: Shape, repetitions: int = 7) -> list[Timing]:
    """Time loss and both gradients in float32 on the CPU, alternating between implementations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        embeddings = torch.randn(shape.batch, shape.size, requires_grad=True)
        proxies = torch.randn(shape.classes, shape.size, requires_grad=True)
        labels = torch.randint(shape.classes, (shape.batch,))
        # As of a confidence head: near 1 for few classes, near 0 for the others.
        confidences = torch.rand(shape.batch, shape.classes) ** 64
        plain = _with_proxies(ProxyAnchorLoss(shape.classes, shape.size), proxies)
        library = _with_proxies(LibraryProxyAnchorLoss(shape.classes, shape.size), proxies)
        smooth = _with_proxies(SmoothProxyAnchorLoss(shape.classes, shape.size), proxies)
    contenders: dict[str, dict[str, Callable[[], Tensor]]] = {
        "Proxy-Anchor": {
            OURS: lambda: plain(embeddings, labels),
            LIBRARY: lambda: library(embeddings, labels),
            REFERENCE: lambda: proxy_anchor_loss(embeddings, proxies, labels),
        },
        "Smooth Proxy-Anchor": {
            OURS: lambda: smooth(embeddings, confidences),
            REFERENCE: lambda: smooth_proxy_anchor_loss(embeddings, proxies, confidences),
        },
    }
    timings = []
    for loss, forward in contenders.items():
        steps = {name: _Step(call, embeddings, proxies) for name, call in forward.items()}
        _check(loss, {name: step.outcome() for name, step in steps.items()})
        calls: dict[str, Callable[[], object]] = {**steps, FLOOR: lambda: _three_products(embeddings, proxies)}
        timings += [Timing(loss, name, time) for name, time in _medians(calls, repetitions).items()]
    return timings


class _Step:
    """A loss and its two gradients."""

    def __init__(self, forward: Callable[[], Tensor], embeddings: Tensor, proxies: Tensor) -> None:
        self._forward, self._inputs = forward, (embeddings, proxies)

    def __call__(self) -> None:
        self.outcome()

    def outcome(self) -> tuple[Tensor, ...]:
        value = self._forward()
        return (value.detach(), *torch.autograd.grad(value, self._inputs))


def _with_proxies(loss: torch.nn.Module, proxies: Tensor) -> torch.nn.Module:
    """Replace the proxies of a loss by a given tensor, shared by all contenders."""
    del loss.proxies
    loss.proxies = proxies
    return loss


def _check(loss: str, outcomes: dict[str, tuple[Tensor, ...]]) -> None:
    ours = outcomes[OURS]
    for name, theirs in outcomes.items():
        for what, mine, other in zip(("value", "embeddings' gradient", "proxies' gradient"), ours, theirs, strict=True):
            error = float((mine - other).norm() / other.norm())
            if not error <= TOLERANCE:
                raise RuntimeError(f"{loss}: {OURS} and {name} differ in the {what} by {error:.1e} (relative)")


def _three_products(embeddings: Tensor, proxies: Tensor) -> None:
    with torch.no_grad():
        similarity = proxies @ embeddings.T
        torch.mm(similarity, embeddings)
        torch.mm(similarity.T, proxies)


def _medians(calls: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}
