"""Functions that depend on PyTorch's version, from 2.6 on, the oldest that ``pip install`` accepts."""

import typing
from collections import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef


# Whether ``addmm`` adds a product of half-precision operands to a float32 matrix. Up to 2.7 there is no ``out_dtype``;
# 2.8 and 2.9 take it and raise "self and mat2 must have the same dtype".
ADDS_HALF_PRODUCTS = torch.__version__ >= "2.10"  # compared as versions


def registered_op(name: str, schema: str | None = None) -> "Callable[[Callable[..., Any]], CustomOpDef]":
    """``torch.library.custom_op`` for a function that changes none of its arguments; no schema: of its annotations."""

    def register(function: Callable[..., Any]) -> "CustomOpDef":
        annotations: dict[str, Any] = function.__annotations__
        for key, kind in annotations.items():
            if typing.get_origin(kind) is abc.Sequence:  # PyTorch 2.6 makes a schema of typing's alone
                annotations[key] = typing.Sequence[typing.get_args(kind)]  # type: ignore[misc]
        return torch.library.custom_op(name, function, mutates_args=(), schema=schema)

    return register
