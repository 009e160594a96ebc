"""DistributedDataParallel copies the buffers of its first process to the others before each step."""

import warnings
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_warned: WeakSet[nn.Module] = WeakSet()


def check_ddp_buffers(memory: nn.Module, divided: bool) -> None:
    """If the running DistributedDataParallel overwrites the buffers: raise if the module is divided, else warn."""
    ddp = None if torch.compiler.is_compiling() else getattr(DistributedDataParallel, "_active_ddp_module", None)
    if ddp is None or ddp.process_group.size() == 1:
        return
    copied = {id(buffer) for buffer in ddp.modules_buffers}
    if not any(id(buffer) in copied for buffer in memory.buffers()):
        return
    name = type(memory).__name__
    if divided:
        raise RuntimeError(
            f"the classes of this {name} are divided, and DistributedDataParallel writes those of the first process "
            "over those of the others: call leave_out_of_ddp(model) of robustdml_ops.distributed before it is made, or "
            "keep the filter out of the model"
        )
    # PyTorch 2.13 has a name of its own for the copies before a forward.
    if getattr(ddp, "forward_sync_buffers", getattr(ddp, "broadcast_buffers", True)) and memory not in _warned:
        _warned.add(memory)
        warnings.warn(
            f"{name} is within DistributedDataParallel, which gives all processes the buffers of the first before each "
            "step: what the others have seen is forgotten. To remember the samples of "
            "all, divide it with shard_classes and leave_out_of_ddp of robustdml_ops.distributed; to have each process "
            "remember its own, make DistributedDataParallel with broadcast_buffers=False",
            stacklevel=3,
        )
