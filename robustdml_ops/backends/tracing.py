"""Tensors of which the shape alone is known: under a compiler, on the meta device, in FakeTensorMode."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def has_no_values(tensor: Tensor) -> bool:
    """Whether the values of ``tensor`` can't be read, in FakeTensorMode those of any: the registered ops serve it."""
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor):
        return True
    return torch._C._get_dispatch_mode(_FAKE) is not None


def in_eager_mode(tensor: Tensor) -> bool:
    """``tensor`` has values, and no transform of ``torch.func`` or forward mode is at work."""
    return not in_registry(tensor) and torch.autograd.forward_ad._current_level < 0


def in_registry(tensor: Tensor) -> bool:
    """Whether an op that is no autograd function goes by its registered form: that knows ``torch.func``, too."""
    return has_no_values(tensor) or torch._C._are_functorch_transforms_active()


def refuse_tracing() -> None:
    """Refuse ``torch.jit.trace``, which would take results of compiled code for constants."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise RuntimeError(
            "torch.jit.trace sees nothing of what this op computes, and would keep its results as constants: take "
            "torch.export or torch.compile"
        )


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """No autocast, which the meta device doesn't have; where there is none, as most often, it takes no time."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
