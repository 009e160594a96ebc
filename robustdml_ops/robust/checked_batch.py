"""Checks of the inputs of a filter or a memory bank in a training step, and of foreign writes to its buffers."""

import warnings
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from robustdml_ops.engine.labels import check_labels
from robustdml_ops.engine.shards import OneProcess, OwnRows, settings_of
from robustdml_ops.engine.validation import INTEGERS, check_matrix, check_range, check_same_device, check_tensor

_warned: WeakSet[nn.Module] = WeakSet()


class CheckedBatch(NamedTuple):
    """A batch whose shapes, types, devices and sample ids have been checked."""

    X: Tensor  # (B, D) floating point
    labels: Tensor  # (B,) int64
    sample_ids: Tensor | None  # (B,) int64


def check_batch(
    name: str, rows: Tensor, labels: Tensor, sample_ids: Tensor | None, D: int, N: int | None, state: Tensor | None
) -> CheckedBatch:
    """Check all but the values of labels and of rows, called ``name`` in errors; ids are required if N is given."""
    check_matrix(name, rows, columns=D)
    check_same_device(**{name: rows, "state": state})
    labels = check_labels(labels, rows)
    if sample_ids is not None:
        sample_ids = check_ids(sample_ids, len(labels), N, labels.device)
    elif N is not None:
        raise ValueError("sample_ids is missing, and num_samples needs them: pass (B,) integers")
    return CheckedBatch(rows, labels, sample_ids)


def check_ids(sample_ids: object, B: int, N: int | None, device: torch.device) -> Tensor:
    """Sample ids as (B,) int64 on ``device``; in 0 … N−1 if N is given."""
    ids = check_tensor("sample_ids", sample_ids)
    if ids.shape != (B,) or ids.dtype not in INTEGERS:
        raise ValueError(f"sample_ids must be integers of shape ({B},), got {tuple(ids.shape)} of {ids.dtype}")
    ids = ids.to(device, torch.int64, non_blocking=True)
    if N is not None:
        check_range(ids, N, "sample id", "sample_ids", "num_samples")
    return ids


def check_keep(keep: object, labels: Tensor) -> Tensor:
    """``keep`` as (B,) bool on the device of the labels."""
    if not isinstance(keep, Tensor) or keep.shape != labels.shape or keep.dtype != torch.bool:
        found = f"{tuple(keep.shape)} of {keep.dtype}" if isinstance(keep, Tensor) else type(keep).__name__
        raise ValueError(
            f"keep must be bool of shape ({len(labels)},), got {found}: pass PRISM's result.keep, or a mask of your own"
        )
    return keep.to(labels.device)


def batch_of_all(
    module: nn.Module, shards: OneProcess, check: Callable[[], tuple[CheckedBatch, Tensor | None]]
) -> tuple[CheckedBatch, Tensor | None]:
    """Batch and ``keep`` of all processes; if ``check`` raises on one process, all raise."""

    def check_own() -> OwnRows:
        batch, keep = check()
        return {**batch._asdict(), "keep": keep}

    own = shards.agree(check_own, settings_of(module) if shards.divided else {})
    *joint, keep = (shards.gather(own[name]) for name in (*CheckedBatch._fields, "keep"))
    return CheckedBatch(*joint), keep


def check_ddp_buffers(module: nn.Module, divided: bool) -> None:
    """If the running DistributedDataParallel overwrites the buffers: raise if the module is divided, else warn."""
    ddp = None if torch.compiler.is_compiling() else getattr(DistributedDataParallel, "_active_ddp_module", None)
    if ddp is None or ddp.process_group.size() == 1:
        return
    copied = {id(buffer) for buffer in ddp.modules_buffers}
    if not any(id(buffer) in copied for buffer in module.buffers()):
        return
    name = type(module).__name__
    if divided:
        raise RuntimeError(
            f"the classes of this {name} are divided, and DistributedDataParallel writes those of the first process "
            "over those of the others: call leave_out_of_ddp(model) of robustdml_ops.distributed before it is made, or "
            "keep the filter out of the model"
        )
    # PyTorch 2.13 has a name of its own for the copies before a forward.
    if getattr(ddp, "forward_sync_buffers", getattr(ddp, "broadcast_buffers", True)) and module not in _warned:
        _warned.add(module)
        warnings.warn(
            f"{name} is within DistributedDataParallel, which gives all processes the buffers of the first before each "
            "step: what the others have seen is forgotten. To remember the samples of "
            "all, divide it with shard_classes and leave_out_of_ddp of robustdml_ops.distributed; to have each process "
            "remember its own, make DistributedDataParallel with broadcast_buffers=False",
            stacklevel=3,
        )
