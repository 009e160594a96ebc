"""Classes divided among processes: the hooks where a loss or filter communicates, its buffers, and its DTensors.

Each process owns a shard of the classes and its own samples. A loss computes on the samples of all processes and the
classes of its shard; each hook turns a shard's result into that of all. On one process they are no-ops;
``robustdml_ops.distributed`` replaces :class:`OneProcess` with its ``ClassShards``.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
Rows = TypeVar("Rows", bound=Tensor | None)
OwnRows = dict[str, Tensor | None]  # of the samples of a process, by name


class OneProcess:
    """One process owns all classes and all samples: every hook returns its argument."""

    divided: bool = False  # whether other processes own classes, too

    def agree(self, check: Callable[[], OwnRows], settings: Mapping[str, object]) -> dict[str, Any]:
        """Return ``check()``, rows of samples; raise on all processes if it raises on one, or if settings differ."""
        return check()

    def guard(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that communicates; where it raises, the other processes raise, too, instead of waiting."""
        return function(*arguments)

    def gather(self, rows: Rows, for_shards: bool = True) -> Rows:
        """Rows of the samples of all processes, after ``agree``; differentiable if floating point.

        ``for_shards``: each process uses them for its shard of the loss, and the gradients are summed. False: every
        process computes the same value from them.
        """
        return rows

    def local_shard(self, parameter: Tensor) -> Tensor:
        """The shard of a parameter on this process, plain memory; differentiable."""
        return parameter

    def is_sharded(self, values: Tensor | None) -> bool:
        """Whether ``values`` are sharded rows, of which :meth:`local_shard` returns this shard."""
        return False

    def select_local(self, values: Tensor) -> Tensor:
        """The shard of ``values`` for all classes, or of a DTensor of such; plain memory."""
        return values

    def shard_bounds(self, rows: int) -> tuple[int, int]:
        """First row of this shard of ``rows`` rows, and one past the last."""
        return 0, rows

    def gather_chunks(self, values: tuple[Tensor, ...], rows: int, most: int) -> Iterator[tuple[Tensor, ...]]:
        """All of ``rows`` sharded rows in chunks of at most ``most``; ``values`` hold this shard."""
        return zip(*(torch.split(value, most) for value in values), strict=True)

    def for_classes(self, number: int) -> "OneProcess":
        """The hooks of the same processes for another number of classes."""
        return self

    def gather_rows(self, values: Tensor, rows: Tensor) -> Tensor:
        """``values[rows]`` of the values of all classes, given this shard's; ``rows`` may differ between processes."""
        return values.index_select(0, rows)

    def new_parameter(self, loss: Any, name: str, shape: torch.Size) -> Tensor:
        """The parameter ``name`` of ``loss`` in another shape, filled as in a new loss."""
        values = torch.empty(shape, dtype=getattr(loss, name).dtype, device=getattr(loss, name).device)
        loss.fill_parameter(name, values)
        return values

    def owns_labels(self, labels: Tensor) -> Tensor:
        """Whether this shard has the class of each label, (B,) bool."""
        return torch.ones_like(labels, dtype=torch.bool)

    def to_local_labels(self, labels: Tensor) -> Tensor:
        """Labels (B,) counted from the first class of this shard; ``ELSEWHERE`` for classes of other shards."""
        return labels

    def sum_terms(self, term: Tensor) -> Tensor:
        """Sum of a loss's terms () over all shards; all then call backward with the same upstream gradient."""
        return term

    def begin_backward(self, loss: Tensor, check: Callable[[Tensor], None] | None = None) -> Tensor:
        """The loss, whose backward first calls ``check(dL/dloss)``; all processes raise where it raises on one.

        Nor does one wait for another whose backward raises later. The upstream gradient of a loss () must be the same
        on all.
        """
        if check is not None and loss.requires_grad:
            loss.register_hook(check)  # type: ignore[no-untyped-call]
        return loss

    def sum_over_processes(self, number: Tensor) -> Tensor:
        """Sum of a number over all shards; no gradient."""
        return number

    def min_over_processes(self, value: Tensor) -> Tensor:
        """Least value of all shards; no gradient."""
        return value

    def join_log_sum_exp(self, lse: Tensor, target: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Log-sum-exps over all classes and logits of the labels, (B,) each, from those over this shard."""
        return lse, target

    def join_log_one_plus(self, lse: Tensor) -> Tensor:
        """log(1 + Σ_shards s) from log(1 + s). All processes then call backward with the same upstream gradient."""
        return lse

    def gather_at_labels(self, values: Tensor, labels: Tensor) -> Tensor:
        """values[labels], (B,), of ``values`` for this shard's classes, for this shard of the loss."""
        return values[labels]

    def local_at_labels(self, values: Tensor, labels: Tensor) -> Tensor:
        """values[labels], (B, …), of ``values`` for this shard's classes; 0 for classes of other shards."""
        return values.index_select(0, labels)

    def take_from_owners(self, values: Tensor, labels: Tensor) -> Tensor:
        """Values (B,) as the process that owns each label's class has them; no gradient."""
        return values

    def sum_gradient(self, value: Tensor) -> Tensor:
        """A value that all processes have and use for their shards of the loss; its gradient is summed over them."""
        return value

    def own_slice(self) -> slice:
        """Where this process's samples are in the joint batch."""
        return slice(None)

    def take_own(self, values: Tensor) -> Tensor:
        """Entries of this process's samples, of values for the joint batch; differentiable."""
        return values

    def put_own_first(self, rows: Tensor) -> Tensor:
        """Rows of the joint batch, this process's samples first."""
        return rows


ONE_PROCESS = OneProcess()


def settings_of(module: nn.Module) -> dict[str, object]:
    """Numbers and names that a module was made with, types of its parameters, which it trains, and counts of steps.

    They are equal on all processes. Counts on a GPU are left out: reading them would wait for it.
    """
    plain = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and (value is None or isinstance(value, (bool, int, float, str)))
    }
    own = dict(module.named_parameters(recurse=False))
    trained = {f"requires_grad of {name}": value.requires_grad for name, value in own.items()}
    types = {f"the type of {name}": str(value.dtype) for name, value in own.items()}
    counts = {
        f"the count {name}": value.item()
        for name, value in module.named_buffers()
        if value.dim() == 0 and value.dtype == torch.int64 and value.device.type == "cpu"
    }
    return {"the class": type(module).__name__, **plain, **trained, **types, **counts}


def digest(value: int | Tensor | tuple[Tensor, ...] | None) -> object:
    """A number, or a list of them, that is equal on all processes if the argument is."""
    if isinstance(value, tuple):
        return [digest(part) for part in value]
    if not isinstance(value, Tensor):
        return value
    return zlib.crc32(value.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().data)


class ShownSettings:
    """A module whose ``repr`` has the attributes that ``shown`` names."""

    shown: ClassVar[tuple[str, ...]] = ()

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)


class TypedBuffers(ShownSettings, nn.Module):
    """``.half()`` and the like move buffers and convert none: sums of classes would drift, a large κ would overflow."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TypedBuffers":
        def move(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            return moved if moved.dtype == buffer.dtype else buffer.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self


class ClassBuffers(TypedBuffers):
    """A module of one process, or of the classes of all; ``robustdml_ops.distributed`` sets ``shards``."""

    shards: OneProcess = ONE_PROCESS
    class_buffers: ClassVar[tuple[str, ...]] = ()

    def class_dimensions(self) -> dict[str, int]:
        """Buffers with an entry for each class, and the dimension that counts the classes."""
        return dict.fromkeys(self.class_buffers, 0)


# DTensors of proxies and of their optimiser state; each process has ⌈rows/W⌉ rows, the last ones fewer.


def is_sharded(tensor: Tensor | None) -> bool:
    """Whether ``tensor`` is a DTensor, without the slow import of its class."""
    return type(tensor).__name__ == "DTensor"


def check_held(module: Any) -> None:
    """Raise if a parameter with an entry for each class is no longer the module's own, as after a parametrisation."""
    for name in module.class_dimensions():
        held = module._parameters.get(name, module._buffers.get(name))
        # The mark of FullyShardedDataParallel has no public name.
        divided = hasattr(held, "_fsdp_flattened") or (is_sharded(held) and not module.shards.divided)
        if held is None or divided:
            why = (
                "it is divided already, by FSDP or as a DTensor of your own"
                if divided
                else "weight_norm, another parametrization, pruning or FSDP computes it"
            )
            raise TypeError(
                f".{name} of {type(module).__name__} is not its own tensor: {why}. Leave that out, or undo it "
                "before this call; robustdml_ops.distributed.shard_classes divides classes"
            )


def local_of(tensor: Any) -> Tensor:
    """The local shard, sharing its memory."""
    local: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return local


def shard_like(parameter: Any, moment: Tensor) -> Tensor:
    """``moment`` sharded like the parameter: of the shape of the parameter's shard, or of one number a row."""
    if not is_sharded(parameter):
        return moment
    from torch.distributed.tensor import DTensor, Shard

    placements, shape, stride = parameter.placements, parameter.shape, parameter.stride()
    if moment.dim() < parameter.dim():
        (divided,) = placements
        placements, shape, stride = [Shard(0)], shape[divided.dim : divided.dim + 1], (1,)
        if parameter.dim() == 3:  # several centres a class, which stay on one process
            centers = parameter.shape[1]
            moment, shape, stride = moment.view(-1, centers), parameter.shape[:2], (centers, 1)
    return DTensor.from_local(moment, parameter.device_mesh, placements, run_check=False, shape=shape, stride=stride)


def of_shards(local: Tensor, whole: Tensor, mesh: Any, placement: Any) -> Tensor:
    """A DTensor with the shape of ``whole``, whose shard here is ``local``, made contiguous."""
    # ``distribute_tensor`` of PyTorch 2.6 leaves padding, which ``AdamW(fused=True)`` takes for entries.
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local.contiguous(), mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride()
    )


def shard_loaded(own: Any, loaded: Tensor) -> Tensor:
    """The loaded tensor, which all processes have, sharded like ``own``; nothing is sent.

    A copy: ``load_state_dict(assign=True)`` keeps it; a view would hold all rows, and its DTensor has no deepcopy.
    """
    if not is_sharded(own) or is_sharded(loaded):
        return loaded
    local, whole = loaded, torch.empty(loaded.shape, device="meta")
    (placement,) = own.placements
    if placement.is_shard():
        rows = loaded.shape[placement.dim]
        each = -(-rows // own.device_mesh.size())
        first = min(rows, own.device_mesh.get_local_rank() * each)
        local = loaded.narrow(placement.dim, first, min(each, rows - first)).clone()
    return of_shards(local.to(own.device), whole, own.device_mesh, placement)
