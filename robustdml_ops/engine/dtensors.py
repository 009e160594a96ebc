"""Shards of proxies and of their optimiser state, as DTensors; each process has ⌈rows/W⌉ rows, the last ones fewer."""

from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a DTensor, without the slow import of its class."""
    return type(tensor).__name__ == "DTensor"


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
    """The loaded tensor, which all processes have, sharded like ``own``; nothing is sent."""
    if not is_sharded(own) or is_sharded(loaded):
        return loaded
    local, whole = loaded, torch.empty(loaded.shape, device="meta")
    (placement,) = own.placements
    if placement.is_shard():
        rows = loaded.shape[placement.dim]
        each = -(-rows // own.device_mesh.size())
        first = min(rows, own.device_mesh.get_local_rank() * each)
        local = loaded.narrow(placement.dim, first, min(each, rows - first))
    return of_shards(local.to(own.device), whole, own.device_mesh, placement)
