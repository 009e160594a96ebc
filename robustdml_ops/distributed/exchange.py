"""The exchanges of a step with their gradients.

A loss that all processes have, because they have summed their parts of it, is backpropagated by each of them. So the
backward of such a sum is the identity, and the gradient of what all have is the sum of what each of them finds.
Second derivatives would need more, and are refused.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from robustdml_ops.distributed.processes import Processes


class Gather(torch.autograd.Function):
    """Rows of all processes; the gradient of own rows, times ``factor``, is the sum of what all processes find.

    Or, where they are not for parts of the loss but for what all processes have, what any of them finds.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, processes: Processes, factor: float, for_shards: bool) -> Tensor:
        """Of own rows."""
        ctx.processes, ctx.factor, ctx.sizes, ctx.for_shards = processes, factor, processes.sizes, for_shards
        return processes.gather(rows, processes.sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Of the rows of all."""
        processes, sizes = ctx.processes, ctx.sizes
        own = processes.scatter_sum(gradient, sizes) if ctx.for_shards else gradient[processes.own(sizes)]
        return own if ctx.factor == 1 else own * ctx.factor, None, None, None


class Own(torch.autograd.Function):
    """Own rows of what all processes have; each of them gives the upstream gradient of its own."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, processes: Processes) -> Tensor:
        """Of the rows of all."""
        ctx.processes, ctx.sizes = processes, processes.sizes
        return values[processes.own(processes.sizes)].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Of own rows."""
        return ctx.processes.gather(gradient, ctx.sizes), None


class Total(torch.autograd.Function):
    """Sum of the parts of a loss, of which every process has the upstream gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, processes: Processes) -> Tensor:
        """Of own part."""
        return processes.sum(part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Of the sum."""
        return gradient, None


class Common(torch.autograd.Function):
    """A value that all processes have, for their parts of the loss."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, processes: Processes) -> Tensor:
        """Of the value."""
        ctx.processes = processes
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Of own part."""
        return ctx.processes.sum(gradient), None


class Shared(torch.autograd.Function):
    """Sum of values of which each process has a part, used by each for its part of the loss."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, processes: Processes) -> Tensor:
        """Of own part."""
        ctx.processes = processes
        return processes.sum(part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Of the sum, as own part of the loss sees it."""
        return ctx.processes.sum(gradient), None


class JointLogSumExp(torch.autograd.Function):
    """Log-sum-exps over the classes of all processes, and the label's logit from the process that has its class."""

    @staticmethod
    def forward(ctx: Any, lse: Tensor, target: Tensor, here: Tensor, processes: Processes) -> tuple[Tensor, Tensor]:
        """Of (B,) each over the classes here; ``here`` (B,) bool says whose label is among them."""
        shift = processes.maximum(lse)
        finite = shift.masked_fill(shift == -torch.inf, 0)
        # Where no process has a class that counts the sum is 0, and its logarithm -inf.
        sums = processes.sum(torch.stack([(lse - finite).exp(), target.masked_fill(~here, 0)]))
        joint = finite + sums[0].log()
        ctx.save_for_backward(lse, joint, here)
        return joint, sums[1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlse: Tensor, dtarget: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Each process's share of a sum is the weight of its classes."""
        lse, joint, here = ctx.saved_tensors
        weight = (lse - joint.masked_fill(joint == -torch.inf, torch.inf)).exp()
        return dlse * weight, dtarget * here, None, None


class JointLogOnePlus(torch.autograd.Function):
    """log(1 + Σ) of a sum of which each process has a part, given as log(1 + part)."""

    @staticmethod
    def forward(ctx: Any, lse: Tensor, processes: Processes) -> Tensor:
        """Of any shape."""
        shift = processes.maximum(lse)
        # Each part by e^shift: e^(lse − shift) − e^−shift, without a difference of what is nearly equal.
        joint = shift + (torch.expm1(-shift) + processes.sum((lse - shift).exp() * -torch.expm1(-lse))).log1p()
        ctx.save_for_backward(lse, joint)
        return joint

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Each process has the upstream gradient of the whole."""
        lse, joint = ctx.saved_tensors
        return gradient * (lse - joint).exp(), None
