"""The state of sharded proxies: every moment is a DTensor like the proxies."""

from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a DTensor, without the slow import of its class."""
    return type(tensor).__name__ == "DTensor"


def local_of(tensor: Any) -> Tensor:
    """The local shard, sharing its memory."""
    local: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return local


def shard_like(parameter: Any, moment: Tensor) -> Tensor:
    """The DTensor whose local shard is ``moment``, of the shape of the parameter's shard or of one number a row."""
    from torch.distributed.tensor import DTensor, Shard

    placements, shape, stride = parameter.placements, parameter.shape, parameter.stride()
    if moment.dim() == 1:
        (divided,) = placements
        placements, shape, stride = [Shard(0)], shape[divided.dim : divided.dim + 1], (1,)
        if parameter.dim() == 3:  # several centres a class, which stay on one process
            centers = parameter.shape[1]
            moment, shape, stride = moment.view(-1, centers), parameter.shape[:2], (centers, 1)
    return DTensor.from_local(moment, parameter.device_mesh, placements, run_check=False, shape=shape, stride=stride)


def shard_loaded(own: Any, loaded: Tensor) -> Tensor:
    """The loaded tensor, sharded like ``own``."""
    if not is_sharded(own) or is_sharded(loaded):
        return loaded
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(loaded.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
