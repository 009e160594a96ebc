"""The steps that are measured, each at a shape, in a type, on a device."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor, nn

from robustdml_ops.losses import MultiSimilarityLoss, ProxyAnchorLoss
from robustdml_ops.ops import AnchorBiases, LabelSets, anchor_lse, class_lse, otsu_threshold

from ..shapes import Shape
from .timing import Step

# B=1024, C=10⁶, D=512 is the size that this is for; 256, 10⁵ and 128 that of a first trial.
LARGE, SMALL, LARGEST = Shape(1024, 10**6, 512), Shape(256, 10**5, 128), Shape(1024, 10**7, 512)
BATCH, LOSSES = Shape(8192, 0, 512), Shape(1024, 0, 0)
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "amp": torch.float32}
SAMPLES_A_CLASS = 4


@dataclass(frozen=True)
class Inputs:
    """Inputs of one shape; "amp": float32 under autocast to bfloat16."""

    shape: Shape
    dtype: str
    device: torch.device

    @cached_property
    def embeddings(self) -> Tensor:
        return self._rows(self.shape.B).requires_grad_()

    @cached_property
    def proxies(self) -> Tensor:
        return self._rows(self.shape.C).requires_grad_()

    @cached_property
    def labels(self) -> Tensor:
        """Any of C classes; where there are none, so many samples of each as batches of pairs have."""
        classes = self.shape.C or max(1, self.shape.B // SAMPLES_A_CLASS)
        return torch.randint(classes, (self.shape.B,), device=self.device)

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.dtype == "amp" else nullcontext()

    def step(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Step:
        """Of ``loss(embeddings, proxies, labels)`` with both gradients."""
        X, P, y = self.embeddings, self.proxies, self.labels

        def run() -> Tensor:
            with self.autocast():
                return loss(X, P, y)

        return Step.of_loss(run, X, P)

    def step_of_pairs(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Step:
        """Of ``loss(embeddings, labels)``."""
        X, y = self.embeddings, self.labels

        def run() -> Tensor:
            with self.autocast():
                return loss(X, y)

        return Step.of_loss(run, X)

    def _rows(self, count: int) -> Tensor:
        rows = torch.empty(count, self.shape.D, dtype=TYPES[self.dtype], device=self.device)
        if self.device.type == "meta":  # where launches are counted
            return rows
        return rows.normal_(generator=torch.Generator(self.device).manual_seed(count))


def flops(shape: Shape, gradients: bool = True) -> float:
    """Of the products that no step over classes, or over pairs of a batch with itself, does without."""
    if shape.C:
        return 2.0 * shape.B * shape.C * shape.D * (3 if gradients else 1)
    return 2.0 * shape.B**2 * shape.D * (2 if gradients else 1)


def with_proxies(module: nn.Module, proxies: Tensor) -> nn.Module:
    """The module of a few classes, with other proxies: initial values of 10⁷ would take their time."""
    del module.proxies
    module.num_classes, module.proxies = len(proxies), proxies
    return module


def proxy_anchor(inputs: Inputs) -> Step:
    module = with_proxies(ProxyAnchorLoss(1, inputs.shape.D), inputs.proxies)
    return inputs.step(lambda X, P, y: module(X, y))


def proxy_nca(inputs: Inputs) -> Step:
    """−log P(label) of Proxy-NCA: unit vectors, scaled by 2."""

    def loss(X: Tensor, P: Tensor, y: Tensor) -> Tensor:
        lse, target = class_lse(X, P, y, scale=2.0)
        return (lse - target).mean()

    return inputs.step(loss)


def multi_similarity(inputs: Inputs) -> Step:
    return inputs.step_of_pairs(MultiSimilarityLoss(2.0, 50.0, 0.5, epsilon=0.1))


def class_forward(inputs: Inputs) -> Step:
    """Without gradients, as filters and evaluation ask."""
    X, P, y = inputs.embeddings.detach(), inputs.proxies.detach(), inputs.labels
    return Step(lambda: class_lse(X, P, y, scale=2.0))


def anchor_forward(inputs: Inputs) -> Step:
    X, P, sets = inputs.embeddings.detach(), inputs.proxies.detach(), LabelSets.of(inputs.labels)
    zeros = torch.zeros(len(X), device=X.device)
    return Step(lambda: anchor_lse(X, P, sets, AnchorBiases(zeros, zeros), alpha=32.0))


def otsu(inputs: Inputs) -> Step:
    values = torch.rand(inputs.shape.B, device=inputs.device)
    return Step(lambda: otsu_threshold(values))


Make: TypeAlias = Callable[[Inputs], Step]
STEPS: dict[str, Make] = {
    "proxy-anchor": proxy_anchor,
    "proxy-nca": proxy_nca,
    "multi-similarity": multi_similarity,
    "class forward": class_forward,
    "anchor forward": anchor_forward,
    "otsu": otsu,
}
