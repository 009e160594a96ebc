"""The three losses beside their references: one list that every test of the family walks."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from python_ref import adaptive_proxy_anchor_loss, proxy_anchor_loss, smooth_proxy_anchor_loss
from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss

CPU_BACKENDS = ("native", "eager")
NAMES = ("proxy-anchor", "smooth", "smooth-factored", "adaptive", "adaptive-per-class", "adaptive-per-class-proxy")


@dataclass
class Case:
    """A loss module, its inputs, and the reference on the same inputs."""

    name: str
    B: int
    C: int
    D: int
    dtype: torch.dtype = torch.float64
    alpha: float = 32.0
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

        options = {"alpha": self.alpha, "reduction": self.reduction, "backend": self.backend}
        if self.name.startswith("adaptive"):
            options |= {"per_class": "per-class" in self.name}
            options |= {"negative_margin": "proxy" if self.name.endswith("proxy") else "sample"}
            self.module = AdaptiveProxyAnchorLoss(self.C, self.D, **options)
            self.module.margins.data += 0.2 * random(*self.module.margins.shape).abs()
        elif self.name.startswith("smooth"):
            self.module = SmoothProxyAnchorLoss(self.C, self.D, **options)
        else:
            self.module = ProxyAnchorLoss(self.C, self.D, **options)
        self.module.proxies.data = random(self.C, self.D)
        self.module.to(self.dtype)
        # Half of the samples lie near a proxy, so that the softmax weights are peaky; lengths differ.
        near = self.module.proxies.detach().double()[torch.randint(self.C, (self.B,), generator=generator)]
        mixed = torch.where(torch.rand(self.B, 1, generator=generator) < 0.5, near, random(self.B, self.D))
        self.embeddings = ((mixed + 0.1 * random(self.B, self.D)) * 3).to(self.dtype).requires_grad_()
        self.labels = torch.randint(max(1, self.C // 2), (self.B,), generator=generator)
        self.hidden, self.weight, self.bias = random(self.B, 5), random(self.C, 5), random(self.C) - 2
        if self.weighted:
            self.weights = torch.rand(self.B, generator=generator, dtype=torch.float64) * 2
            self.weights[:: max(2, self.B // 3)] = 0
            self.weights = self.weights.to(self.dtype).requires_grad_()

    @property
    def factors(self):
        return tuple(part.to(self.dtype) for part in (self.hidden, self.weight, self.bias))

    @property
    def confidences(self):
        hidden, weight, bias = self.factors
        return torch.sigmoid(hidden @ weight.t() + bias)

    def ours(self):
        targets = {"smooth": self.confidences, "smooth-factored": self.factors}.get(self.name, self.labels)
        return self.module(self.embeddings, targets, sample_weights=self.weights)

    def reference(self, dtype=None):
        """The reference in ``dtype``, on the inputs as ours sees them."""

        def cast(tensor):
            return None if tensor is None else tensor.to(dtype or self.dtype)

        embeddings, proxies, weights = map(cast, (self.embeddings, self.module.proxies, self.weights))
        options = {"alpha": self.alpha, "sample_weights": weights, "reduction": self.reduction}
        if self.name.startswith("smooth"):
            return smooth_proxy_anchor_loss(embeddings, proxies, cast(self.confidences), **options)
        if self.name.startswith("adaptive"):
            side = "proxy" if self.name.endswith("proxy") else "sample"
            margins = cast(self.module.margins)
            return adaptive_proxy_anchor_loss(
                embeddings, proxies, self.labels, margins, negative_margin=side, **options
            )
        return proxy_anchor_loss(embeddings, proxies, self.labels, **options)

    @property
    def inputs(self) -> list[Tensor]:
        parameters: list[nn.Parameter] = list(self.module.parameters())
        return [self.embeddings, *parameters, *([self.weights] if self.weighted else [])]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients for an upstream vector that differs from proxy to proxy."""
        upstream = torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
        return list(torch.autograd.grad(loss, self.inputs, upstream))
