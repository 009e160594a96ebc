"""Collectives of the processes that share classes, and error messages that name the rank that failed.

Every process runs the same collectives in the same order. Three events would break that. One process gets wrong input,
or leaves out a call: so all exchange a few bytes before each forward and backward, and all raise. Or one process dies:
the others notice, and learn from the roll call which ranks still answer.
"""

import secrets
import time
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import _StopRecomputationError

from robustdml_ops.distributed.roll_call import LOOK, RollCall, meet
from robustdml_ops.engine.shards import OwnRows

T = TypeVar("T")

_STAGES = ("forward", "backward")
_FORWARD, _BACKWARD = range(2)
# Places in a header. The first three tell where a process is, and must be the same on all.
_PLACE, _OK, _CONTENT, _TRAITS = slice(0, 3), 3, 4, 5
# How often shard_classes was called for these ranks.
_calls: Counter[tuple[int, ...]] = Counter()


class ShardError(RuntimeError):
    """Another process has failed, has died, or got other settings or input."""


class Processes:
    """The process group of a mesh of one dimension."""

    def __init__(self, mesh: DeviceMesh, timeout: timedelta) -> None:
        group = mesh.get_group()
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.ranks = dist.get_process_group_ranks(group)  # as error messages name them
        _calls[tuple(self.ranks)] += 1
        name = f"robustdml_ops/{'.'.join(map(str, self.ranks))}/{_calls[tuple(self.ranks)]}"
        groups = dist.distributed_c10d._world.pg_names
        store = dist.distributed_c10d._get_default_store()
        store.set(f"{name}/groups/{self.rank}", str(len(groups)))
        if missing := meet(name, dist.get_rank(), self.ranks, timeout):
            raise ShardError(
                f"ranks {missing} of {self.ranks} have not called shard_classes within {timeout}: call it on every "
                "process of the mesh, for the same losses and filters in the same order"
            )
        # A group of its own on the host: its messages wait for no GPU. Where the mesh is a subset of the world, only
        # its processes make the group, whose name comes from their ranks.
        subset = self.size < dist.get_world_size()
        if subset:  # the name also has the number of groups that a process has, which is made the same on all
            most = max(int(store.get(f"{name}/groups/{rank}")) for rank in range(self.size))
            for _ in range(most - len(groups)):
                dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
        self.host: Any = dist.new_group(self.ranks, timeout=timeout, backend="gloo", use_local_synchronization=subset)
        self.device_group: Any = self.host if mesh.device_type == "cpu" else group
        self.sizes: tuple[int, ...] = ()  # samples of each process in the present step
        self.checks = -1  # of input; that of shard_classes does not count
        self.collectives = 0
        self.parted = False
        # A launcher's store outlives the processes that it starts anew: their alarm has another name.
        secret = torch.tensor([secrets.randbits(62)], device="cpu")
        dist.broadcast(secret, self.ranks[0], group=self.host)
        self.roll_call = RollCall(f"{name}/{int(secret)}", self.rank, self.ranks, timeout)
        weakref.finalize(self, self.roll_call.stop)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Processes":
        """Copies of a loss share the connections."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a loss or filter whose classes are sharded can't be pickled, since connections can't: save its "
            "state_dict(), or with torch.distributed.checkpoint"
        )

    def own(self, sizes: Sequence[int]) -> slice:
        """Places of this process's samples in the joint batch of ``sizes[rank]`` samples of each process."""
        first = sum(sizes[: self.rank])
        return slice(first, first + sizes[self.rank])

    def agree(self, check: Callable[[], OwnRows], settings: Mapping[str, object]) -> dict[str, Any]:
        """Return ``check()``; raise on all processes if it raises on one, or if settings or input differ."""
        rows, error, traits = {}, None, {name: repr(value) for name, value in settings.items()}
        try:
            rows = check()
            traits |= {name: _trait(value) for name, value in rows.items()}
        except Exception as raised:
            error = raised
        size = next((len(value) for value in rows.values() if value is not None), 0)
        self.checks += 1
        checksum = zlib.crc32(repr(traits).encode())
        headers = self._look("the look at each other's input", _FORWARD, error is None, size, checksum)
        if not headers[:, _OK].all() or (headers[:, _TRAITS] != checksum).any():
            self._disagree("step", error, traits)
        self.sizes = tuple(headers[:, _CONTENT].tolist())
        return rows

    def _look(self, what: str, stage: int, ok: bool, content: int, traits: int) -> Tensor:
        """Headers of all processes (W, 6); raise where they are at different calls of the loss."""
        header = torch.tensor([stage, self.checks, self.collectives, ok, content, traits], device="cpu")
        headers = self._all_gather(header, self.host, what)
        if (headers[:, _PLACE] != header[_PLACE]).any():
            places = "; ".join(
                f"rank {rank} is in the {_STAGES[stage]}, after {checks} checks of input and {collectives} collectives"
                for rank, (stage, checks, collectives) in zip(self.ranks, headers[:, _PLACE].tolist(), strict=True)
            )
            message = f"the processes are at different calls of a sharded loss or filter: {places}"
            self._part(message)
            raise ShardError(
                f"{message}. Every process has to make the same calls and backwards in the same order; end all of them "
                "and start anew"
            )
        return headers

    def _disagree(self, what: str, error: Exception | None, traits: Mapping[str, str]) -> NoReturn:
        """Raise on every process, naming the rank that differs or failed."""
        reports: list[Any] = [None] * self.size
        report = None if error is None else f"{type(error).__name__}: {error}"
        dist.all_gather_object(reports, (report, dict(traits)), group=self.host)
        if error is not None:
            raise error
        failed = [f"rank {rank}: {report}" for rank, (report, _) in zip(self.ranks, reports, strict=True) if report]
        if failed:
            raise ShardError(f"no process has done this {what}, because of {'; '.join(failed)}")
        base = reports[0][1]
        differing = [
            f"{name} is {base.get(name, 'not there')} on rank {self.ranks[0]} and {found.get(name, 'not there')} on "
            f"rank {rank}"
            for rank, (_, found) in zip(self.ranks, reports, strict=True)
            for name in sorted(base.keys() | found.keys())
            if base.get(name) != found.get(name)
        ]
        raise ShardError(f"all processes need the same: {'; '.join(differing[:8])}")

    def gather(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Rows of all processes by rank, ``sizes[rank]`` of each; no gradient."""
        if rows.dtype == torch.bool:
            return self.gather(rows.view(torch.uint8), sizes).bool()
        most, own = max(sizes), sizes[self.rank]
        rows = rows.detach().contiguous()
        if own < most:
            rows = torch.cat([rows, rows.new_zeros((most - own, *rows.shape[1:]))])
        if most == 0:
            return rows
        gathered = self._all_gather(rows, self.device_group, "the gathering of the batch")
        if min(sizes) == most:
            return gathered.flatten(0, 1)
        return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])

    def scatter_sum(self, parts: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return own rows of the sum of ``parts`` over all processes; ``sizes[rank]`` rows belong to each."""
        if self.device_group is self.host:
            return self._all_reduce(parts, dist.ReduceOp.SUM, "the sum of the embeddings' gradients")[self.own(sizes)]
        most, own = max(sizes), sizes[self.rank]
        if most == 0:
            return parts
        summed = parts.new_empty((most, *parts.shape[1:]))
        if min(sizes) < most:
            padded = parts.new_zeros((self.size, most, *parts.shape[1:]))
            for place, part in zip(padded, torch.split(parts, list(sizes)), strict=True):
                place[: len(part)] = part
            parts = padded
        flat = parts.contiguous().view(-1)
        self._run("the sum of the embeddings' gradients", self.device_group, _REDUCE_SCATTER, summed.view(-1), flat)
        return summed[:own]

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all processes; no gradient."""
        return self._all_reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: Tensor) -> Tensor:
        """Largest of all processes; no gradient."""
        return self._all_reduce(values, dist.ReduceOp.MAX)

    def begin_backward(self, gradient: Tensor, check: Callable[[Tensor], None] | None) -> None:
        """Raise on all processes if ``check(gradient)`` raises on one, or if ``gradient`` () of the loss differs.

        On a GPU the gradients are compared by a device-side assertion.
        """
        error = None
        try:
            if check is not None:
                check(gradient)
        except Exception as raised:
            error = raised
        number = gradient.detach().double() if gradient.dim() == 0 else None
        on_host = number is not None and number.device.type == "cpu"
        bits = int(number.view(torch.int64)) if number is not None and on_host else 0
        headers = self._look("the look at the gradient of the loss", _BACKWARD, error is None, bits, 0)
        if not headers[:, _OK].all():
            self._disagree("backward", error, {})
        if number is not None:
            numbers = headers[:, _CONTENT].view(torch.float64)
            if not on_host:
                numbers = self._all_gather(number[None], self.device_group, "the comparison of its gradient").flatten()
            self._require_same(numbers)
        torch.autograd.Variable._execution_engine.queue_callback(self.roll_call.new_backward())

    def _require_same(self, numbers: Tensor) -> None:
        """Raise where the gradient () of the loss on one process differs."""
        differs = (numbers != numbers[0]) & ~(numbers.isnan() & numbers[0].isnan())
        if numbers.device.type != "cpu":
            torch._assert_async(~differs.any(), "the gradient of the loss differs between processes")
        elif differs.any():
            place = int(differs.nonzero()[0])
            raise ShardError(
                f"the gradient of the loss is {float(numbers[0]):.6g} on rank {self.ranks[0]} and "
                f"{float(numbers[place]):.6g} on rank {self.ranks[place]}: multiply it by the same factor on all "
                "processes; loss scalers and schedules among them. Nothing has been made of it"
            )

    def _all_reduce(self, values: Tensor, operation: Any, what: str = "a sum or maximum over all classes") -> Tensor:
        result = values.detach().clone(memory_format=torch.contiguous_format)
        self._run(what, self.device_group, dist.all_reduce, result, operation)
        return result

    def _all_gather(self, values: Tensor, group: Any, what: str) -> Tensor:
        gathered = values.new_empty((self.size, *values.shape))
        self._run(what, group, _ALL_GATHER, gathered.view(-1), values.view(-1))
        return gathered

    def guard(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that communicates; where it raises, tell the others, so that no process waits."""
        try:
            return function(*arguments)
        except (ShardError, _StopRecomputationError):  # the latter ends what torch.utils.checkpoint computes anew
            raise
        except Exception as error:
            self._part(f"{type(error).__name__}: {error}")
            raise

    def _part(self, report: str) -> None:
        """Leave the other processes, with a report for them."""
        self.parted = True
        with suppress(RuntimeError):  # the store may have ended
            self.roll_call.ring(report)

    def _run(self, what: str, group: Any, collective: Callable[..., Any], *arguments: Any) -> None:
        """Run a collective; where it fails, or another process has failed, raise a ShardError that names the rank."""
        if self.parted or self.roll_call.backward_has_failed():
            raise ShardError(f"{what}: the processes have parted after an error; end all of them and start anew")
        self.roll_call.doing = f"is in {what}, after {self.checks} checks of input"
        self.collectives += 1
        try:
            if self.roll_call.alarm:
                raise RuntimeError("another process has failed before")
            work = collective(*arguments, group=group, async_op=True)
            if group is self.host:
                self._wait(work)
            else:
                work.wait()  # the device's stream waits, the host does not
        except RuntimeError as error:
            self.parted = True
            found = self.roll_call.call()
            first_line = str(error).partition("\n")[0]
            raise ShardError(f"{what} has failed: {found} ({first_line})") from error
        self.roll_call.doing = f"is elsewhere, after {what} and {self.checks} checks of input"

    def _wait(self, work: Any) -> None:
        """Wait for a collective, and look for the alarm."""
        while True:
            start = time.monotonic()
            try:
                work.wait(timedelta(seconds=LOOK))
            except RuntimeError:
                if work.is_completed():  # or has failed; after a pause of all, just after the wait has ended
                    work.wait()
                    return
                if time.monotonic() - start < 0.5 * LOOK:
                    raise
                if self.roll_call.alarm:
                    raise RuntimeError("another process has failed while this one waited") from None
            else:
                return


def _trait(value: Tensor | None) -> str:
    """Properties of a tensor that must be the same on all processes."""
    if value is None:
        return "not given"
    gradient = ", with a gradient" if value.requires_grad and torch.is_grad_enabled() else ""
    device = value.device.type
    narrowed = value.is_floating_point() and torch.is_autocast_enabled(device)
    cast = f", under autocast to {torch.get_autocast_dtype(device)}" if narrowed else ""
    columns = f" with {value.shape[1]} columns" if value.dim() > 1 else ""
    return f"of {value.dtype}{columns}{gradient}{cast}"


# PyTorch 2.13 has other names for both, and warns of the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
