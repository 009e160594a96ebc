"""Collectives of a step, with their gradients.

All processes sum their terms of a loss and call backward on the same sum. So the backward of that sum is the identity,
and the gradient of a value that all processes use is the sum of their gradients. Second derivatives are refused.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from robustdml_ops.distributed.processes import Processes


class Local(torch.autograd.Function):
    """The shard of a DTensor on this process; its gradient is sharded, and lies in memory, as the DTensor.

    ``DTensor.to_local`` takes the layout from the local gradient. Where that differs, as for columns that shards divide
    unequally, AccumulateGrad copies it, and PyTorch 2.6 makes that copy a replicated one of the whole size.
    """

    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> Tensor:
        ctx.mesh, ctx.placements = parameter.device_mesh, parameter.placements
        ctx.shape, ctx.stride = parameter.shape, parameter.stride()
        local: Tensor = parameter.to_local()
        return local

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> DTensor:
        return DTensor.from_local(
            gradient.contiguous(), ctx.mesh, ctx.placements, run_check=False, shape=ctx.shape, stride=ctx.stride
        )


class Gather(torch.autograd.Function):
    """Rows of all processes; gradient of own rows: ``factor`` · (Σ_processes if ``for_shards``, else the own one)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, processes: Processes, factor: float, for_shards: bool) -> Tensor:
        ctx.processes, ctx.factor, ctx.sizes, ctx.for_shards = processes, factor, processes.sizes, for_shards
        return processes.gather(rows, processes.sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        processes, sizes = ctx.processes, ctx.sizes
        own = processes.scatter_sum(gradient, sizes) if ctx.for_shards else gradient[processes.own(sizes)]
        return own if ctx.factor == 1 else own * ctx.factor, None, None, None


class Own(torch.autograd.Function):
    """Own rows of a tensor that all processes have; backward gathers their upstream gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, processes: Processes) -> Tensor:
        ctx.processes, ctx.sizes = processes, processes.sizes
        return values[processes.own(processes.sizes)].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.processes.gather(gradient, ctx.sizes), None


class Sum(torch.autograd.Function):
    """Sum over all processes, of the values, of their gradients, or of both."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, processes: Processes, of_values: bool, of_gradients: bool) -> Tensor:
        ctx.processes, ctx.of_gradients = processes, of_gradients
        return processes.sum(value) if of_values else value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.processes.sum(gradient) if ctx.of_gradients else gradient, None, None, None


class SameUpstream(torch.autograd.Function):
    """The loss; backward compares the upstream gradients of all processes, before anything is made of them."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.processes.require_same(gradient, "the gradient of the loss")
        return gradient, None


class JointLogSumExp(torch.autograd.Function):
    """Log-sum-exps over the classes of all processes, and the labels' logits from the owners of their classes."""

    @staticmethod
    def forward(ctx: Any, lse: Tensor, target: Tensor, here: Tensor, processes: Processes) -> tuple[Tensor, Tensor]:
        """Join log-sum-exps (B,) and logits (B,) or (B, K); ``here`` bool: this shard owns the label's class."""
        shift = processes.maximum(lse)
        finite = shift.masked_fill(shift == -torch.inf, 0)
        # log 0 = −inf where no class counts on any process.
        sums = processes.sum(torch.cat([(lse - finite).exp(), target.masked_fill(~here, 0).flatten()]))
        joint = finite + sums[: len(lse)].log()
        ctx.save_for_backward(lse, joint, here)
        return joint, sums[len(lse) :].view(target.shape).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlse: Tensor, dtarget: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """dL/dlse = dL/djoint · e^(lse − joint)."""
        lse, joint, here = ctx.saved_tensors
        weight = (lse - joint.masked_fill(joint == -torch.inf, torch.inf)).exp()
        return dlse * weight, dtarget * here, None, None


class JointLogOnePlus(torch.autograd.Function):
    """log(1 + Σ_processes s) from log(1 + s)."""

    @staticmethod
    def forward(ctx: Any, lse: Tensor, processes: Processes) -> Tensor:
        shift = processes.maximum(lse)
        # s · e^−shift = e^(lse − shift) · (1 − e^−lse), where a difference would lose digits.
        joint = shift + (torch.expm1(-shift) + processes.sum((lse - shift).exp() * -torch.expm1(-lse))).log1p()
        ctx.save_for_backward(lse, joint)
        return joint

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """dL/dlse = dL/djoint · e^(lse − joint)."""
        lse, joint = ctx.saved_tensors
        return gradient * (lse - joint).exp(), None
