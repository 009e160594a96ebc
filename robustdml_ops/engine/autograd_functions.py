"""The call of an autograd function or of a registered op, and the scaling of gradients that a forward has made."""

import typing
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values, in_eager_mode, in_registry
from robustdml_ops.engine.rows.backend import RowsBackend

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

P = ParamSpec("P")
R = TypeVar("R")


def registered_op(name: str, schema: str | None = None) -> "Callable[[Callable[..., Any]], CustomOpDef]":
    """``torch.library.custom_op`` for a function that changes none of its arguments; no schema: of its annotations."""

    def register(function: Callable[..., Any]) -> "CustomOpDef":
        annotations: dict[str, Any] = function.__annotations__
        for key, kind in annotations.items():
            if typing.get_origin(kind) is Sequence:  # PyTorch 2.6 makes a schema of typing's alone
                annotations[key] = typing.Sequence[typing.get_args(kind)]  # type: ignore[misc]
        return torch.library.custom_op(name, function, mutates_args=(), schema=schema)

    return register


def like_first(first: Tensor, *rest: object) -> Tensor:
    """Memory for one result of the shape and type of the first argument."""
    return torch.empty_like(first, memory_format=torch.contiguous_format)


def op_in_graphs(name: str, fake: Callable[..., Any] = like_first) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that compiled graphs and ``torch.func`` call as an op; ``fake``: its results without values."""

    def register(function: Callable[P, R]) -> Callable[P, R]:
        registered_op(f"robustdml_ops::{name}")(function).register_fake(fake)
        op: Any = getattr(torch.ops.robustdml_ops, name).default  # which PyTorch's compiler knows in any closure

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            like: Any = args[0]
            result: R = op(*args, **kwargs) if in_registry(like) else function(*args, **kwargs)
            return result

        return call

    return register


def apply_function(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply(*arguments)``, in eager mode without what PyTorch does for defaults and dead wrappers: 30 µs."""
    like = next(argument for argument in arguments if isinstance(argument, Tensor))
    wanted = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)
    if has_no_values(like) and not wanted:
        # PyTorch's compiler would pass a context to a forward that takes any number of arguments, and has none.
        return function.forward(*_without_twins(arguments))
    if not in_eager_mode(like):
        return function.apply(*_without_twins(arguments))  # type: ignore[no-untyped-call]
    if not torch.is_grad_enabled():
        return function.forward(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def _without_twins(arguments: Sequence[Any]) -> list[Any]:
    """A view in place of a tensor that is there already: PyTorch's compiler takes no tensor twice."""
    seen: list[Any] = []
    for argument in arguments:
        twin = isinstance(argument, Tensor) and any(argument is other for other in seen)
        seen.append(argument.view_as(argument) if twin else argument)
    return seen


def scale_gradients(
    gradients: Sequence[Tensor | None],
    factor: Tensor,
    backends: Mapping[str, RowsBackend],
    backend: str,
    types: Sequence[torch.dtype | None],
) -> list[Tensor | None]:
    """Gradients of a sweep times ``factor`` (), in their own memory, or on a GPU in their one of ``types``."""
    if has_no_values(factor):
        return [None if gradient is None else (gradient * factor).to(gradient.dtype) for gradient in gradients]
    # On the CPU the usual upstream of exactly 1 saves a pass over the proxies; a GPU's kernel looks at it itself.
    scaled = list(gradients)
    if factor.device.type != "cpu" or factor.item() != 1:
        for place, (gradient, dtype) in enumerate(zip(gradients, types, strict=True)):
            if gradient is None:
                continue
            if factor.device.type != "cpu" and dtype is not None and dtype != gradient.dtype:
                scaled[place] = torch.mul(gradient, factor, out=gradient.new_empty(gradient.shape, dtype=dtype))
            else:
                choose(backends, backend, gradient.device, factor.dtype).scale(gradient, factor)
    return scaled
