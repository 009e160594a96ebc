"""The losses over classes beside their references: one list that every test of the family walks."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from python_ref import (
    arcface_loss,
    cosface_loss,
    mean_over_samples,
    normalized_softmax_loss,
    proxy_nca_losses,
    soft_triple_loss,
    soft_triple_regularizer,
)
from robustdml_ops.losses import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)

NAMES = (
    "proxy-nca",
    "proxy-nca-2017",
    "normalized-softmax",
    "soft-triple",
    "soft-triple-one-center",
    "cosface",
    "arcface",
    "arcface-wide",
    "subcenter-arcface",
)


@dataclass
class ClassCase:
    """A loss module, its inputs, and the reference on the same inputs."""

    name: str
    B: int
    C: int
    D: int
    dtype: torch.dtype = torch.float64
    reduction: str = "mean"
    weighted: bool = False
    backend: str | None = None
    seed: int = 0
    embeddings: Tensor = field(init=False)
    weights: Tensor | None = field(init=False, default=None)

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)

        def random(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        options = {"reduction": self.reduction, "backend": self.backend}
        if self.name.startswith("proxy-nca"):
            include = self.name == "proxy-nca"
            self.module = ProxyNCALoss(self.C, self.D, 8.0, include_positive=include, **options)
        elif self.name == "normalized-softmax":
            self.module = NormalizedSoftmaxLoss(self.C, self.D, **options)
        elif self.name == "cosface":
            self.module = CosFaceLoss(self.C, self.D, 0.35, 16.0, **options)
        elif "arcface" in self.name:
            # In one dimension all angles are 0 or π, where the derivative of a margin has a pole. The wide one has many
            # samples beyond π − m.
            self.margin = 0.0 if self.D == 1 else 100.0 if self.name.endswith("wide") else 28.6
            build = SubCenterArcFaceLoss if self.name.startswith("subcenter") else ArcFaceLoss
            self.module = build(self.C, self.D, self.margin, 16.0, **options)
        else:
            H = 1 if self.name.endswith("one-center") else 3
            # In one dimension centers coincide, and the reference's root has no derivative there.
            self.regularizer_weight = 0.3 if self.D > 1 else 0.0
            self.module = SoftTripleLoss(self.C, self.D, H, regularizer_weight=self.regularizer_weight, **options)
        centers = random(self.parameter.numel() // self.D, self.D)
        self.parameter.data = centers if self.name.startswith("proxy") else centers.t()
        self.module.to(self.dtype)
        # Half of the samples lie near a center, so that the softmax is peaky; lengths differ.
        near = centers[torch.randint(len(centers), (self.B,), generator=generator)]
        mixed = torch.where(torch.rand(self.B, 1, generator=generator) < 0.5, near, random(self.B, self.D))
        self.embeddings = ((mixed + 0.1 * random(self.B, self.D)) * 3).to(self.dtype).requires_grad_()
        self.labels = torch.randint(max(1, self.C // 2), (self.B,), generator=generator)
        if self.weighted:
            self.weights = torch.rand(self.B, generator=generator, dtype=torch.float64) * 2
            self.weights[:: max(2, self.B // 3)] = 0
            self.weights = self.weights.to(self.dtype).requires_grad_()

    @property
    def parameter(self):
        return next(iter(self.module.parameters()))

    def ours(self):
        return self.module(self.embeddings, self.labels, sample_weights=self.weights)

    def reference(self, dtype=None):
        """The reference in ``dtype``, on the inputs as ours sees them."""

        def cast(tensor):
            return None if tensor is None else tensor.to(dtype or self.dtype)

        X, W, weights, y = cast(self.embeddings), cast(self.parameter), cast(self.weights), self.labels
        options = {"sample_weights": weights, "reduction": self.reduction}
        if self.name.startswith("proxy-nca"):
            return mean_over_samples(proxy_nca_losses(X, W, y, 8.0, self.name == "proxy-nca"), **options)
        if self.name == "normalized-softmax":
            return normalized_softmax_loss(X, y, W.t(), **options)
        if self.name == "cosface":
            return cosface_loss(X, y, W.t(), 0.35, 16.0, **options)
        centers = W.t().reshape(self.C, -1, self.D)
        if "arcface" in self.name:
            return arcface_loss(X, y, centers, self.margin, 16.0, **options)
        loss = soft_triple_loss(X, y, centers, **options)
        if self.reduction == "none" or self.regularizer_weight == 0:
            return loss
        return loss + self.regularizer_weight * soft_triple_regularizer(centers)

    @property
    def inputs(self) -> list[Tensor]:
        return [self.embeddings, self.parameter, *([self.weights] if self.weighted else [])]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients for an upstream vector that differs from sample to sample."""
        upstream = torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
        return list(torch.autograd.grad(loss, self.inputs, upstream))
