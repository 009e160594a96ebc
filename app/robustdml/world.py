"""The processes that train one run together, as torchrun starts them; most often there is one."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from robustdml.arrays import Rows
from robustdml.errors import UsageError, few, reason_of

Module = TypeVar("Module", bound=nn.Module)
T = TypeVar("T")

# How long a process waits for another one: the first makes features of all data while the others wait.
TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True)
class World:
    """The processes as one of them sees them; on one process each method gives back what it is given."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def first(self, work: Callable[[], T]) -> T:
        """Do work that leaves files behind: the first process does it before the others."""
        if not self.leads:
            dist.barrier()
        result = work()
        if self.leads and self.size > 1:
            dist.barrier()
        return result

    def part(self, rows: Rows) -> Rows:
        """Own rows of a batch; the rows of all processes, in the order of ranks, are the batch."""
        return np.array_split(rows, self.size)[self.rank]

    def wrap(self, network: nn.Module) -> nn.Module:
        """Give a network whose gradients are averaged over the processes."""
        return network if self.size == 1 else DistributedDataParallel(network)

    def shard(self, module: Module) -> Module:
        """Shard the classes of a loss or filter."""
        if self.size == 1:
            return module
        from robustdml_ops.distributed import shard_classes

        try:
            return shard_classes(module, timeout=TIMEOUT)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{error}. Train on one process, without torchrun") from error

    def largest(self, number: int) -> int:
        """Largest of the processes' numbers, which meet on the hosts: no GPU is waited for."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._hosts)
        return int(found)

    @cached_property
    def _hosts(self) -> dist.ProcessGroup | None:
        """A group on the hosts; None where the default one is."""
        return None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=TIMEOUT)

    def require_same(self, settings: Mapping[str, object]) -> None:
        """Raise on all processes where settings differ: they would train on other batches, or wait for each other."""
        if self.size == 1:
            return
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, {name: repr(value) for name, value in settings.items()}, group=self._hosts)
        differing = [
            f"{name} is {found[0][name]} on rank 0 and {value} on rank {rank}"
            for rank, own in enumerate(found)
            for name, value in own.items()
            if value != found[0][name]
        ]
        if differing:
            raise UsageError(f"{few(differing)}: start all processes with the same settings, data and checkpoint")

    def summed(self, values: Tensor) -> Tensor:
        """The sum of the values of all processes."""
        if self.size == 1:
            return values
        total = values.clone()
        dist.all_reduce(total)
        return total

    def merged(self, values: Tensor) -> Tensor:
        """Put together values that each process has some of, NaN for the others; the last of several counts."""
        if self.size == 1:
            return values
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values)
        merged = parts[0]
        for part in parts[1:]:
            merged = torch.where(part.isnan(), merged, part)
        return merged


ALONE = World()


@contextmanager
def joined_world(device: str) -> Iterator[World]:
    """Join the processes that torchrun has started, if it has."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    try:
        dist.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
        yield World(dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        from robustdml_ops.distributed import ShardError

        # What gloo raises where another process has ended has no type of its own.
        if not isinstance(error, ShardError | dist.DistError) and "/gloo/" not in str(error):
            raise
        why = "its messages, or its launcher's, say why"
        raise UsageError(f"another process has failed or ended; {why}: {reason_of(error)}") from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def whole(state: Any) -> Any:
    """Gather the shards of a state; all processes call it."""
    if isinstance(state, Mapping):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(whole(value) for value in state)
    return state.full_tensor() if hasattr(state, "full_tensor") else state


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the gathered state of an optimiser; each process keeps its shard."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_parameters = {
        number: {name: _shard_of(value, parameters[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": of_parameters})


def _shard_of(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if value.dim() != parameter.dim():  # Centres are rows where classes are sharded, else columns.
        value = value.t().reshape(parameter.shape) if parameter.dim() == 3 else value.flatten(0, 1).t().contiguous()
    if not hasattr(parameter, "full_tensor"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    mesh = parameter.device_mesh
    return distribute_tensor(value.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)
