"""Gradients that a sweep makes with its value, kept for the backward of its autograd function."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from robustdml_ops.backends.dispatch import has_no_values


def save(ctx: Any, tensors: Sequence[Any], gradients: Sequence[Tensor | None]) -> None:
    """Save ``tensors``, of which the first is not None, and keep ``gradients``."""
    # In eager mode backward scales the gradients in place and gives them away. A compiled backward
    # (torch._dynamo.config.compiled_autograd) is given saved tensors alone.
    ctx.in_graph, ctx.number_saved = has_no_values(tensors[0]), len(tensors)
    ctx.gradients = None if ctx.in_graph else gradients
    ctx.save_for_backward(*tensors, *(gradients if ctx.in_graph else ()))


def saved(ctx: Any) -> Any:
    """The saved tensors, a tuple. Read once: torch.utils.checkpoint gives them out a single time."""
    return ctx.saved_tensors[: ctx.number_saved]


def take(ctx: Any) -> Sequence[Tensor | None] | None:
    """The gradients; None where eager mode has given them away."""
    if ctx.in_graph:
        kept: Sequence[Tensor | None] = ctx.saved_tensors[ctx.number_saved :]
        return kept
    gradients: Sequence[Tensor | None] | None = ctx.gradients
    ctx.gradients = None
    return gradients
