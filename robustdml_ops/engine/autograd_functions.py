"""The call of an autograd function, and the scaling of gradients that its forward has already computed."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values, in_eager_mode
from robustdml_ops.engine.rows.backend import RowsBackend


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
    gradients: Sequence[Tensor | None], factor: Tensor, backends: Mapping[str, RowsBackend], backend: str
) -> list[Tensor | None]:
    """Gradients that a sweep has made beforehand times the upstream gradient ``factor`` (), in their own memory."""
    if has_no_values(factor):
        return [None if gradient is None else (gradient * factor).to(gradient.dtype) for gradient in gradients]
    # On the CPU the usual upstream of exactly 1 saves a pass over the proxies; a GPU's kernel looks at it itself.
    if factor.device.type != "cpu" or factor != 1:
        for gradient in gradients:
            if gradient is not None:
                choose(backends, backend, gradient.device, factor.dtype).scale(gradient, factor)
    return list(gradients)
