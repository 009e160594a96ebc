"""The derivatives of W and of SuperLoss, and the ops that stand for them in compiled graphs."""

import math
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values, in_registry
from robustdml_ops.engine.older_torch import registered_op
from robustdml_ops.ops.lambert_w.eager import EagerLambertW
from robustdml_ops.ops.lambert_w.native import NativeLambertW
from robustdml_ops.ops.lambert_w.problem import LambertBackend
from robustdml_ops.ops.lambert_w.triton import TritonLambertW

BACKENDS: dict[str, LambertBackend] = {
    "native": NativeLambertW(),
    "triton": TritonLambertW(),
    "eager": EagerLambertW(),
}


def _backend(name: str, like: Tensor) -> LambertBackend:
    return choose(BACKENDS, name, like.device, like.dtype)


class LambertW(torch.autograd.Function):
    """W. Its derivative is a differentiable expression of W, which gives the second derivative."""

    @staticmethod
    def forward(x: Tensor, backend: str) -> Tensor:
        """W(x)."""
        if has_no_values(x):
            return lambertw_op(x, backend)  # type: ignore[no-any-return]
        return _backend(backend, x).lambert_w(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
        """Keep x and W."""
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Upstream times W/(x (1 + W))."""
        x, w = ctx.saved_tensors
        # e^-W is W/x; the exponential of a large W would have W times the rounding error.
        by_quotient = (x.abs() > 0.1) & (x < torch.inf)
        sigma = torch.where(by_quotient, w / torch.where(by_quotient, x, 1), torch.exp(-w))
        return upstream * sigma / (1 + w), None


class SuperLossMinimum(torch.autograd.Function):
    """min (ℓ − τ)σ + λ log²σ over 0 < σ ≤ e, and its argmin σ, which is dvalue/dℓ."""

    @staticmethod
    def forward(losses: Tensor, tau: Tensor, lam: float, backend: str) -> tuple[Tensor, Tensor]:
        """The minimum and σ."""
        if has_no_values(losses):
            return superloss_op(losses, tau, lam, backend)  # type: ignore[no-any-return]
        return _backend(backend, losses).superloss(losses, tau, lam)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep σ."""
        losses, tau, *ctx.settings = inputs
        ctx.save_for_backward(losses, tau, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        """Upstream times σ."""
        losses, tau, sigma = ctx.saved_tensors
        if torch.is_grad_enabled() and not has_no_values(losses):
            # Recompute σ differentiably, for the second derivative; below the clamp it is the constant e.
            lam, backend = ctx.settings
            x = ((losses - tau) / (2 * lam)).clamp(min=-1 / math.e)
            sigma = torch.exp(-LambertW.apply(x, backend))  # type: ignore[no-untyped-call]
        return upstream * sigma, None, None, None


def sigma_of(losses: Tensor, threshold: Tensor, lam: float, backend: str) -> Tensor:
    """ProcSim's σ, a constant."""
    if in_registry(losses):
        return confidence_op(losses, threshold, lam, backend)  # type: ignore[no-any-return]
    return _backend(backend, losses).confidence(losses, threshold, lam)


@registered_op("robustdml_ops::lambertw")
def lambertw_op(x: Tensor, backend: str) -> Tensor:
    """``lambertw`` in compiled graphs."""
    return _backend(backend, x).lambert_w(x)


@lambertw_op.register_fake
def _(x: Tensor, backend: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@registered_op("robustdml_ops::confidence")
def confidence_op(losses: Tensor, threshold: Tensor, lam: float, backend: str) -> Tensor:
    """``confidence`` in compiled graphs."""
    return _backend(backend, losses).confidence(losses, threshold, lam)


@confidence_op.register_fake
def _(losses: Tensor, threshold: Tensor, lam: float, backend: str) -> Tensor:
    return torch.empty_like(losses, memory_format=torch.contiguous_format)


@registered_op("robustdml_ops::superloss")
def superloss_op(losses: Tensor, tau: Tensor, lam: float, backend: str) -> tuple[Tensor, Tensor]:
    """``superloss`` and σ in compiled graphs."""
    return _backend(backend, losses).superloss(losses, tau, lam)


@superloss_op.register_fake
def _(losses: Tensor, tau: Tensor, lam: float, backend: str) -> tuple[Tensor, Tensor]:
    empty = torch.empty_like(losses, memory_format=torch.contiguous_format)
    return empty, torch.empty_like(empty)
