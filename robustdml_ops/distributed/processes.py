"""Collectives of the processes that share classes, and error messages that name the rank that failed.

Every process runs the same collectives in the same order. Two events would break that. One process gets wrong input:
so all exchange a few bytes before each step, and all raise. Or one process dies: the others notice, close their
connections, so that no process waits for them, and read from the store which ranks still answer.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")

# Longest wait for an answer of the other processes after a collective has failed.
ROLL_CALL = timedelta(seconds=10)
_OK, _SIZE, _TRAITS = 0, 1, 2  # places in the header of a step


class ShardError(RuntimeError):
    """Another process has failed, has died, or got other settings or input."""


class Processes:
    """The process group of a mesh of one dimension."""

    def __init__(self, mesh: DeviceMesh, timeout: timedelta) -> None:
        group = mesh.get_group()
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.ranks = dist.get_process_group_ranks(group)  # as error messages name them
        # A group of its own on the host: its messages wait for no GPU, and it can be closed when a process fails. Where
        # the mesh is a subset of the world, only its processes make the group, whose name comes from their ranks.
        subset = self.size < dist.get_world_size()
        self.host: Any = dist.new_group(self.ranks, timeout=timeout, backend="gloo", use_local_synchronization=subset)
        self.device_group: Any = self.host if mesh.device_type == "cpu" else group
        self.name = f"robustdml_ops/{self.host.group_name}/{'.'.join(map(str, self.ranks))}"
        self.sizes: tuple[int, ...] = ()  # samples of each process in the present step
        self.parted = False
        self.roll_call = min(ROLL_CALL, timeout)

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

    def agree(self, check: Callable[[], dict[str, Tensor | None]], settings: Mapping[str, object]) -> dict[str, Any]:
        """Return ``check()``; raise on all processes if it raises on one, or if settings or input differ."""
        rows, error, traits = {}, None, {name: repr(value) for name, value in settings.items()}
        try:
            rows = check()
            traits |= {name: _trait(value) for name, value in rows.items()}
        except Exception as raised:
            error = raised
        size = next((len(value) for value in rows.values() if value is not None), 0)
        header = torch.tensor([error is None, size, zlib.crc32(repr(traits).encode())])
        headers = self._all_gather(header, self.host, "the look at each other's input")
        if not headers[:, _OK].all() or (headers[:, _TRAITS] != header[_TRAITS]).any():
            self._disagree(error, traits)
        self.sizes = tuple(headers[:, _SIZE].tolist())
        return rows

    def _disagree(self, error: Exception | None, traits: Mapping[str, str]) -> NoReturn:
        """Raise on every process, naming the rank that differs or failed."""
        reports: list[Any] = [None] * self.size
        with self._naming("the exchange of messages"):
            report = None if error is None else f"{type(error).__name__}: {error}"
            dist.all_gather_object(reports, (report, dict(traits)), group=self.host)
        if error is not None:
            raise error
        failed = [f"rank {rank}: {report}" for rank, (report, _) in zip(self.ranks, reports, strict=True) if report]
        if failed:
            raise ShardError(f"no process has done this step, because of {'; '.join(failed)}")
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
        most, own = max(sizes), sizes[self.rank]
        if most == 0:
            return parts
        summed = parts.new_empty((most, *parts.shape[1:]))
        if min(sizes) < most:
            padded = parts.new_zeros((self.size, most, *parts.shape[1:]))
            for place, part in zip(padded, torch.split(parts, list(sizes)), strict=True):
                place[: len(part)] = part
            parts = padded
        with self._naming("the sum of the embeddings' gradients"):
            _REDUCE_SCATTER(summed.view(-1), parts.contiguous().view(-1), group=self.device_group)
        return summed[:own]

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all processes; no gradient."""
        return self._all_reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: Tensor) -> Tensor:
        """Largest of all processes; no gradient."""
        return self._all_reduce(values, dist.ReduceOp.MAX)

    def _all_reduce(self, values: Tensor, operation: Any) -> Tensor:
        result = values.detach().clone(memory_format=torch.contiguous_format)
        with self._naming("a sum or maximum over all classes"):
            dist.all_reduce(result, operation, group=self.device_group)
        return result

    def _all_gather(self, values: Tensor, group: Any, what: str) -> Tensor:
        gathered = values.new_empty((self.size, *values.shape))
        with self._naming(what):
            _ALL_GATHER(gathered.view(-1), values.view(-1), group=group)
        return gathered

    def guard(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that communicates; where it raises, close the connections, so that no process waits."""
        try:
            return function(*arguments)
        except ShardError:
            raise
        except Exception as error:
            self._part(f"{type(error).__name__}: {error}")
            raise

    @contextmanager
    def _naming(self, what: str) -> Iterator[None]:
        """Turn the failure of a collective into a ShardError that names the rank."""
        if self.parted:
            raise ShardError(f"{what}: the processes have parted after an error; end all of them and start anew")
        try:
            yield
        except RuntimeError as error:
            raise ShardError(f"{what} has failed: {self._roll_call()}. PyTorch says: {_first_line(error)}") from error

    def _part(self, report: str) -> Any:
        """Close the connections, leave a report in the store, and return the store, or None."""
        self.parted = True
        try:
            dist.destroy_process_group(self.host)
            store = dist.distributed_c10d._get_default_store()
            store.set(f"{self.name}/{self.rank}", report)
        except Exception:  # the store may have gone with the process that died
            return None
        return store

    def _roll_call(self) -> str:
        """Name the ranks that failed, or that do not answer."""
        store = self._part("")
        if store is None:
            return "the store does not answer, which rank 0 or the launcher holds: that process has ended"
        silent: list[str] = []
        failed: list[str] = []
        for rank, name in enumerate(self.ranks):
            key = f"{self.name}/{rank}"
            try:
                store.wait([key], timedelta(seconds=0.5) if silent else self.roll_call)
                report = store.get(key).decode()
            except RuntimeError:
                silent.append(f"rank {name} does not answer: it has ended, or is busy with something else")
            else:
                failed += [f"rank {name}: {report}"] if report else []
        return "; ".join(
            failed or silent or ["all ranks answer, so it may be the network, or a timeout that is too short"]
        )


def _trait(value: Tensor | None) -> str:
    """Properties of a tensor that must be the same on all processes."""
    if value is None:
        return "not given"
    gradient = ", with a gradient" if value.requires_grad and torch.is_grad_enabled() else ""
    columns = f" with {value.shape[1]} columns" if value.dim() > 1 else ""
    return f"of {value.dtype}{columns}{gradient}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


# PyTorch 2.13 has other names for both, and warns of the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
