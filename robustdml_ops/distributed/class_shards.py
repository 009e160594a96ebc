"""The hooks of :class:`~robustdml_ops.engine.shards.OneProcess` where classes are sharded, documented there.

They are collectives with gradients. All processes sum their terms of a loss and call backward on the same sum. So the
backward of that sum is the identity, and the gradient of a value that all processes use is the sum of their gradients.
Second derivatives are refused.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard, empty

from robustdml_ops.distributed.processes import Processes
from robustdml_ops.engine.labels import ELSEWHERE
from robustdml_ops.engine.shards import OneProcess, OwnRows, of_shards

T = TypeVar("T")
# Rows of other processes that one process holds at a time while classes are regrouped.
_BYTES_SENT = 64 << 20


class ClassShards(OneProcess):
    """Classes ``first:last`` of ``num_classes``, sharded as a DTensor shards rows."""

    divided = True

    def __init__(self, num_classes: int, mesh: DeviceMesh, processes: Processes, factor: float) -> None:
        self.num_classes, self.mesh, self.processes, self.factor = num_classes, mesh, processes, factor
        self.first, self.last = self.shard_bounds(num_classes)

    def agree(self, check: Callable[[], OwnRows], settings: Mapping[str, object]) -> dict[str, Any]:
        return self.processes.agree(check, settings)

    def guard(self, function: Callable[..., T], *arguments: Any) -> T:
        return self.processes.guard(function, *arguments)

    def gather(self, rows: Any, for_shards: bool = True) -> Any:
        if rows is None or not rows.is_floating_point():
            return None if rows is None else self.processes.gather(rows, self.processes.sizes)
        return _apply(Gather, rows, self.processes, self.factor, for_shards)

    def local_shard(self, parameter: Tensor) -> Tensor:
        return _apply(Local, parameter) if isinstance(parameter, DTensor) else parameter

    def is_sharded(self, values: Tensor | None) -> bool:
        if not isinstance(values, DTensor):
            return False
        if values.device_mesh != self.mesh or values.placements != (Shard(0),):
            raise ValueError(
                f"a DTensor of {values.placements} on {values.device_mesh}: rows of a bank that shard_classes has "
                f"divided along {self.mesh} are expected, or local tensors with the same rows on all processes"
            )
        return True

    def select_local(self, values: Tensor) -> Tensor:
        if len(values) != self.num_classes:
            raise ValueError(
                f"values of shape {tuple(values.shape)} are given for each class, and there are "
                f"{self.num_classes}: give it for all classes, or as a DTensor that is sharded like the proxies"
            )
        return values.to_local() if isinstance(values, DTensor) else values[self.first : self.last]

    def shard_bounds(self, rows: int) -> tuple[int, int]:
        each, rank = -(-rows // self.processes.size), self.processes.rank
        return min(rows, rank * each), min(rows, (rank + 1) * each)

    def gather_chunks(self, values: tuple[Tensor, ...], rows: int, most: int) -> Iterator[tuple[Tensor, ...]]:
        each = -(-rows // self.processes.size)
        step = max(1, most // self.processes.size)
        held = [min(each, rows - rank * each) for rank in range(self.processes.size)]
        for start in range(0, each, step):
            sizes = [min(max(number - start, 0), step) for number in held]
            yield tuple(self.processes.gather(value[start : start + step], sizes) for value in values)

    def for_classes(self, number: int) -> "ClassShards":
        if number < self.processes.size:
            raise ValueError(f"{number} classes are fewer than the {self.processes.size} processes of the mesh")
        return ClassShards(number, self.mesh, self.processes, self.factor)

    def gather_rows(self, values: Tensor, rows: Tensor) -> Tensor:
        if values.dtype == torch.bool:
            return self.gather_rows(values.view(torch.uint8), rows).bool()
        taken = values.new_empty(len(rows), *values.shape[1:])
        numbers = torch.arange(self.first, self.last, device=values.device)
        most = _BYTES_SENT // (max(1, values[:1].numel()) * values.element_size())
        for chunk, present in self.gather_chunks((values, numbers), self.num_classes, most):
            places = torch.searchsorted(present, rows).clamp(max=len(present) - 1)
            found = present[places] == rows
            taken[found] = chunk[places[found]]
        return taken

    def new_parameter(self, loss: Any, name: str, shape: torch.Size, placement: Placement | None = None) -> Tensor:
        held = getattr(loss, name)
        placements = held.placements if placement is None else [placement]
        made = empty(*shape, dtype=held.dtype, device_mesh=self.mesh, placements=placements)
        seed = int(torch.randint(2**62, (), device="cpu"))
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            if made.device.type == "cpu":
                # A GPU's DTensors draw from different places of one sequence, those of the CPU would draw the same.
                warnings.filterwarnings("ignore", "DTensor random operators may not have complete support")
                torch.manual_seed(seed + self.processes.rank)
            loss.fill_parameter(name, made)
        return made

    def to_local_labels(self, labels: Tensor) -> Tensor:
        return torch.where(self.owns_labels(labels), labels - self.first, ELSEWHERE)

    def owns_labels(self, labels: Tensor) -> Tensor:
        return (labels >= self.first) & (labels < self.last)

    def sum_terms(self, term: Tensor) -> Tensor:
        return _apply(Sum, term, self.processes, True, False)

    def begin_backward(self, loss: Tensor, check: Callable[[Tensor], None] | None = None) -> Tensor:
        return _apply(Begin, loss, self.processes, check)

    def sum_over_processes(self, number: Tensor) -> Tensor:
        return self.processes.sum(number)

    def min_over_processes(self, value: Tensor) -> Tensor:
        return -self.processes.maximum(-value)

    def join_log_sum_exp(self, lse: Tensor, target: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        joint: Any = JointLogSumExp.apply(lse, target, self.owns_labels(labels), self.processes)  # type: ignore[no-untyped-call]
        return joint[0], joint[1]

    def join_log_one_plus(self, lse: Tensor) -> Tensor:
        return _apply(JointLogOnePlus, lse, self.processes)

    def gather_at_labels(self, values: Tensor, labels: Tensor) -> Tensor:
        if values.dtype == torch.bool:
            return self.gather_at_labels(values.view(torch.uint8), labels).bool()
        return _apply(Sum, self.local_at_labels(values, labels), self.processes, True, True)

    def local_at_labels(self, values: Tensor, labels: Tensor) -> Tensor:
        if self.first == self.last:
            # Zeros that are connected to the values: all processes have the same collectives in their backward.
            return values.sum(0, dtype=values.dtype).expand(len(labels), *values.shape[1:])
        here = self.owns_labels(labels)
        rows = values.index_select(0, torch.where(here, labels - self.first, 0))
        return rows.masked_fill(~here.view(-1, *(1,) * (rows.dim() - 1)), 0)

    def take_from_owners(self, values: Tensor, labels: Tensor) -> Tensor:
        return self.processes.sum(values.masked_fill(~self.owns_labels(labels), 0))

    def sum_gradient(self, value: Tensor) -> Tensor:
        return _apply(Sum, value, self.processes, False, True)

    def own_slice(self) -> slice:
        return self.processes.own(self.processes.sizes)

    def take_own(self, values: Tensor) -> Tensor:
        return _apply(Own, values, self.processes)

    def put_own_first(self, rows: Tensor) -> Tensor:
        own = self.own_slice()
        return torch.cat([rows[own], rows[: own.start], rows[own.stop :]])

    def to_dtensor(self, local: Tensor, rows: int | None = None) -> Tensor:
        """The shard as a DTensor of ``rows`` rows, by default one for each class; the same memory."""
        whole = torch.empty(self.num_classes if rows is None else rows, *local.shape[1:], device="meta")
        return of_shards(local, whole, self.mesh, Shard(0))


def _apply(function: Any, *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


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


class Begin(torch.autograd.Function):
    """The loss; in backward all processes agree that they are ready, before anything is made of its gradient."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, processes: Processes, check: Callable[[Tensor], None] | None) -> Tensor:
        ctx.processes, ctx.check = processes, check
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.processes.begin_backward(gradient, ctx.check)
        return gradient, None, None


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
