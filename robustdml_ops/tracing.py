"""Tensors of which the shape alone is known: under a compiler, on the meta device, in FakeTensorMode."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def has_no_values(tensor: Tensor) -> bool:
    """Whether nobody may look into ``tensor``: the registered ops, which infer shapes, then serve it."""
    return torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """No autocast, which the meta device doesn't have."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
