"""W, ProcSim's confidence and SuperLoss on a chosen backend, and the derivatives of W and of SuperLoss."""

import math
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values
from robustdml_ops.engine.autograd_functions import like_first, op_in_graphs
from robustdml_ops.ops.lambert_w.backends import BACKENDS


@op_in_graphs("confidence")
def sigma_of(losses: Tensor, threshold: Tensor, lam: float, backend: str) -> Tensor:
    """ProcSim's σ, a constant."""
    return choose(BACKENDS, backend, losses.device, losses.dtype).confidence(losses, threshold, lam)


class LambertW(torch.autograd.Function):
    """W. Its derivative is a differentiable expression of W, which gives the second derivative."""

    @staticmethod
    @op_in_graphs("lambertw")
    def forward(x: Tensor, backend: str) -> Tensor:
        return choose(BACKENDS, backend, x.device, x.dtype).lambert_w(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
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
    @op_in_graphs("superloss", lambda losses, *_: (like_first(losses), like_first(losses)))
    def forward(losses: Tensor, tau: Tensor, lam: float, backend: str) -> tuple[Tensor, Tensor]:
        return choose(BACKENDS, backend, losses.device, losses.dtype).superloss(losses, tau, lam)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        losses, tau, *ctx.settings = inputs
        ctx.save_for_backward(losses, tau, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        losses, tau, sigma = ctx.saved_tensors
        if torch.is_grad_enabled() and not has_no_values(losses):
            # Recompute σ differentiably, for the second derivative; below the clamp it is the constant e.
            lam, backend = ctx.settings
            x = ((losses - tau) / (2 * lam)).clamp(min=-1 / math.e)
            sigma = torch.exp(-LambertW.apply(x, backend))  # type: ignore[no-untyped-call]
        return upstream * sigma, None, None, None
