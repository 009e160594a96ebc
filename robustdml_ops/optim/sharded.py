"""What an optimiser keeps of proxies whose classes are divided: a DTensor each, as the proxies are."""

from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor; without an import that takes longer than all others here."""
    return type(tensor).__name__ == "DTensor"


def local_of(tensor: Any) -> Tensor:
    """What of it is here, the same memory."""
    local: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return local


def shard_like(parameter: Any, moment: Tensor) -> Tensor:
    """Own part of a moment, of the shape of the parameter's own part or a number a row, as a part of the whole."""
    from torch.distributed.tensor import DTensor, Shard

    placements, shape, stride = parameter.placements, parameter.shape, parameter.stride()
    if moment.dim() == 1:
        (divided,) = placements
        placements, shape, stride = [Shard(0)], shape[divided.dim : divided.dim + 1], (1,)
        if parameter.dim() == 3:  # a row is one of several centres, and no class is to be cut
            centers = parameter.shape[1]
            moment, shape, stride = moment.view(-1, centers), parameter.shape[:2], (centers, 1)
    return DTensor.from_local(moment, parameter.device_mesh, placements, run_check=False, shape=shape, stride=stride)


def part_like(own: Any, loaded: Tensor) -> Tensor:
    """What was loaded, as ``own`` is divided."""
    if not is_sharded(own) or is_sharded(loaded):
        return loaded
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(loaded.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
