"""Functions that depend on PyTorch's version, from 2.6 on, the oldest that ``pip install`` accepts.

The Triton of 2.6 is too old for the kernels: :mod:`robustdml_ops.backends.triton_device` says so.
"""

import typing
from collections import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef


def registered_op(name: str, schema: str | None = None) -> "Callable[[Callable[..., Any]], CustomOpDef]":
    """``torch.library.custom_op`` for a function that changes none of its arguments; no schema: of its annotations."""

    def register(function: Callable[..., Any]) -> "CustomOpDef":
        function.__annotations__ = {key: _spelt(kind) for key, kind in function.__annotations__.items()}
        return torch.library.custom_op(name, function, mutates_args=(), schema=schema)

    return register


def _spelt(annotation: Any) -> Any:
    """``typing.Sequence`` for that of ``collections.abc``: PyTorch 2.6 makes a schema of the former alone."""
    if typing.get_origin(annotation) is not abc.Sequence:
        return annotation
    return typing.Sequence[typing.get_args(annotation)]  # type: ignore[misc]


def float32_setting(device: torch.device) -> str:
    """How PyTorch's products multiply float32 there; "none" or "ieee": with all digits.

    Since 2.9 each backend has its own ``fp32_precision``; the getter of the older setting raises where that was set.
    """
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    return setting or {"highest": "ieee", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]
