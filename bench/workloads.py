"""The contenders over proxies: each runs one loss with both gradients, into fresh gradient memory."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import robustdml_ops.losses
from robustdml_ops.engine.similarity_chunks import chunk_rows
from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss
from robustdml_ops.ops import class_lse, nearest, similarity
from robustdml_ops.python_ref import proxy_anchor_loss, smooth_proxy_anchor_loss

from .device import DEVICE
from .shapes import Shape

HIDDEN = 512  # width of the confidence head in Smooth Proxy-Anchor
CENTERS = 10  # of a class in SoftTriple
DROPPED = 0.2  # cosine above which a negative is left out


def peer_losses() -> Any:
    """The losses of pytorch-metric-learning, which the other contenders do without."""
    return import_module("pytorch_metric_learning.losses")


class Workload:
    """Inputs of one shape, and every contender that runs on them; ``amp``: under autocast to bfloat16."""

    def __init__(
        self, shape: Shape, device: str = DEVICE, dtype: torch.dtype = torch.float32, amp: bool = False
    ) -> None:
        torch.manual_seed(0)
        self.shape, self.device, self.amp = shape, torch.device(device), amp
        B, C, D = shape.B, shape.C, shape.D
        self.embeddings = torch.randn(B, D, device=device, dtype=dtype, requires_grad=True)
        self.proxies = torch.nn.Parameter(torch.randn(C, D, device=device, dtype=dtype))
        self.labels = torch.randint(C, (B,), device=device)

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """A confidence head that is sure of one class in a hundred, give or take."""
        B, C = self.shape.B, self.shape.C
        new = {"device": self.device}
        return torch.randn(B, HIDDEN, **new), torch.randn(C, HIDDEN, **new) / HIDDEN**0.5, torch.full((C,), -4.5, **new)

    @cached_property
    def confidences(self) -> Tensor:
        """The same, as a matrix (B, C)."""
        hidden, weight, bias = self.factors
        return torch.sigmoid(hidden @ weight.t() + bias)

    @cached_property
    def columns(self) -> torch.nn.Parameter:
        """The proxies as (D, C), a column for each class, as losses with a margin store them."""
        return torch.nn.Parameter(self.proxies.detach().t().contiguous())

    @cached_property
    def margins(self) -> Tensor:
        """A margin for each sample."""
        return torch.linspace(0.2, 0.4, self.shape.B, device=self.device)

    def loss_and_gradients(
        self, loss: Callable[[], Tensor], parameter: torch.nn.Parameter | None = None
    ) -> Callable[[], list[Tensor]]:
        """A training step: ``zero_grad(set_to_none=True)``, forward, backward."""
        weights = self.proxies if parameter is None else parameter

        def step() -> list[Tensor]:
            self.embeddings.grad = weights.grad = None
            with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False) if self.amp else nullcontext():
                value = loss()
            value.backward()
            return [value.detach(), self.embeddings.grad, weights.grad]

        return step

    def contender(self, name: str) -> Callable[[], list[Tensor]]:
        """Return the step of ``name``: ``robustdml/…``, ``pml/…``, ``torch/…`` or ``reference/…``."""
        C, D = self.shape.C, self.shape.D
        X, P, y = self.embeddings, self.proxies, self.labels
        if name in self.class_losses:
            return self.loss_and_gradients(self.class_losses[name])
        if name == "pml/proxy-nca":
            proxy_nca = self.peer_proxy_nca()
            return self.loss_and_gradients(lambda: proxy_nca(X, y))
        if name == "robustdml/similarity":
            return lambda: [similarity(X.detach(), P.detach())]
        if name == "robustdml/nearest":
            queries = P.detach()[: C // 5]
            return lambda: list(nearest(queries, queries, 10, exclude_self=True))
        if name.split()[0].endswith(("/arcface", "/cosface")):
            return self.margin_step(name)
        modules = {
            "robustdml/proxy-anchor": ProxyAnchorLoss,
            "robustdml/proxy-anchor dropped": lambda C, D: ProxyAnchorLoss(C, D, drop_similar_negatives=DROPPED),
            "robustdml/proxy-anchor none": lambda C, D: ProxyAnchorLoss(C, D, reduction="none"),
            "robustdml/smooth dense": SmoothProxyAnchorLoss,
            "robustdml/smooth factored": SmoothProxyAnchorLoss,
            "robustdml/adaptive": AdaptiveProxyAnchorLoss,
            "pml/proxy-anchor": lambda C, D: peer_losses().ProxyAnchorLoss(C, D),
        }
        if name == "reference/proxy-anchor":
            return self.loss_and_gradients(lambda: proxy_anchor_loss(X, P, y))
        if name == "reference/smooth dense":
            return self.loss_and_gradients(lambda: smooth_proxy_anchor_loss(X, P, self.confidences))
        module = modules[name](1, D).to(self.device)
        module.num_classes, module.proxies = C, P
        target = {"robustdml/smooth dense": "confidences", "robustdml/smooth factored": "factors"}.get(name, "labels")
        given = getattr(self, target)
        return self.loss_and_gradients(lambda: module(X, given).sum())

    def margin_step(self, name: str) -> Callable[[], list[Tensor]]:
        """ArcFace or CosFace with the options that the name ends with: ``own``, ``margins``."""
        kind, *options = name.split()
        library = robustdml_ops.losses if kind.startswith("robustdml") else peer_losses()
        loss = getattr(library, "CosFaceLoss" if "cosface" in kind else "ArcFaceLoss")(1, self.shape.D).to(self.device)
        loss.num_classes, loss.W = self.shape.C, self.columns
        if "own" in options:
            loss.drop_similar_negatives = "own"
        given = {"margins": self.margins} if "margins" in options else {}
        return self.loss_and_gradients(lambda: loss(self.embeddings, self.labels, **given), self.columns)

    def peer_proxy_nca(self, scale: float = 1.0) -> torch.nn.Module:
        """Proxy-NCA of pytorch-metric-learning on these proxies."""
        peer = peer_losses().ProxyNCALoss(1, self.shape.D, softmax_scale=scale)
        peer.proxies, peer.proxy_labels = self.proxies, torch.arange(self.shape.C, device=self.device)
        return peer

    @cached_property
    def class_losses(self) -> dict[str, Callable[[], Tensor]]:
        """−log P(label): ours of unit vectors scaled by 2, as in Proxy-NCA; PyTorch's of raw vectors."""
        D, X, P, y = self.shape.D, self.embeddings, self.proxies, self.labels

        def ours(proxies: Tensor = P, labels: Tensor = y, **options: Any) -> Tensor:
            lse, target = class_lse(X, proxies, labels, **options)
            return (lse - target).mean()

        def ours_of_two() -> Tensor:
            lse, targets = class_lse(X, P, torch.stack([y, (y + 1) % len(P)], 1), scale=2.0)
            return (lse - targets.mean(1)).mean()

        def soft_triple() -> Tensor:
            """Ten centres a class, out of the same number of rows."""
            centers = P.view(-1, CENTERS, D)
            return ours(centers, y % len(centers), scale=20.0, pooling="softmax", gamma=0.1, target_bias=-0.2)

        losses = {
            "robustdml/class-lse": lambda: ours(scale=2.0),
            "robustdml/class-lse dropped": lambda: ours(scale=2.0, drop_similar_negatives=DROPPED),
            "robustdml/class-lse two labels": ours_of_two,
            "robustdml/class-lse soft-triple": soft_triple,
            "torch/cross_entropy": lambda: torch.nn.functional.cross_entropy(torch.nn.functional.linear(X, P), y),
        }
        if hasattr(torch.nn.functional, "linear_cross_entropy"):  # torch ≥ 2.13
            whole = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=len(X))
            linear_cross_entropy = torch.nn.functional.linear_cross_entropy
            losses["torch/linear_cross_entropy"] = lambda: linear_cross_entropy(X, P, y)
            losses["torch/linear_cross_entropy one chunk"] = lambda: linear_cross_entropy(X, P, y, options=whole)
        return losses

    @cached_property
    def densities(self) -> tuple[Tensor, Tensor]:
        """A scale and a bias for each class, as a filter's densities have them."""
        C = self.shape.C
        return torch.rand(C, device=self.device), torch.randn(C, device=self.device)

    def log_p_clean(self, backend: str | None = None) -> Tensor:
        """The no-gradient pass of a filter, over proxies that are not normalised."""
        X, P, (scale, bias) = self.embeddings.detach(), self.proxies.detach(), self.densities
        lse, target = class_lse(X, P, self.labels, scale=scale, bias=bias, normalize_proxies=False, backend=backend)
        return target - lse

    def products(self, sweeps: int = 1, logits: int = 0, gradients: bool = True) -> Callable[[], None]:
        """The floor: the products alone by chunks, ``sweeps`` times S and ``logits`` times the confidence head's.

        Under autocast those that PyTorch has: of bfloat16, rounded to bfloat16.
        """
        B, C, D = self.shape.B, self.shape.C, self.shape.D
        X, P = (M.detach().bfloat16() if self.amp else M.detach() for M in (self.embeddings, self.proxies))
        rows = min(C, chunk_rows(C, B + 2 * D, self.device))
        S, dX = X.new_empty(rows, B), torch.zeros_like(X)
        hidden, weight, _ = self.factors if logits else (X, P, None)
        dP = torch.zeros_like(P) if gradients else P

        def step() -> None:
            for first in range(0, C, rows):
                last = min(C, first + rows)
                s = S[: last - first]
                for _ in range(logits):
                    torch.mm(weight[first:last], hidden.t(), out=s)
                for _ in range(sweeps):
                    torch.mm(P[first:last], X.t(), out=s)
                if not gradients:
                    continue
                dX.addmm_(s.t(), P[first:last])
                torch.mm(s, X, out=dP[first:last])

        return step

    def flops(self, sweeps: int = 1, logits: int = 0, gradients: bool = True) -> float:
        """Floating-point operations of :meth:`products`."""
        B, C, D = self.shape.B, self.shape.C, self.shape.D
        return 2.0 * B * C * (D * (2 * gradients + sweeps) + HIDDEN * logits)

    def bytes(self, confidences: int = 0) -> float:
        """Least traffic: P read, dP written, and the B×C confidences read ``confidences`` times."""
        return 4.0 * (2 * self.shape.C * self.shape.D + confidences * self.shape.B * self.shape.C)
