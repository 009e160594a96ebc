"""Second derivatives of the sweeps, a chunk at a time, where PyTorch asks for a graph of the gradient.

A sweep makes its gradient by hand. For ``create_graph=True`` backward answers with :class:`Derivative`, whose own
backward differentiates an ordinary expression of one chunk after the other. A third derivative is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import SweepFunction, without_autocast

Results = tuple[Tensor | None, ...]
Expression = Callable[..., Results]


class Derivative(SweepFunction):
    """``first(*tensors)``, the gradients of a sweep, whose derivative is ``second(*tensors, *vectors)``.

    Tensors are the inputs of the sweep, at ``upstream`` two upstream gradients, in which ``first`` is linear, and
    constants. ``vectors`` are the gradients of the results of ``first``, None where none arrives. Under ``torch.func``
    all tensors must be arguments, not in a closure.
    """

    @staticmethod
    def forward(first: Expression, second: Expression, upstream: int, *tensors: Tensor | None) -> Results:
        return first(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        *ctx.settings, ctx.upstream = inputs[:3]
        ctx.save_for_backward(*inputs[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor | None) -> tuple[Tensor | None, ...]:
        # Views, as the engine does not know of a leaf whether its gradient is needed.
        tensors = [t if t is None or not t.requires_grad else t.view_as(t) for t in ctx.saved_tensors]
        settings = (*ctx.settings, ctx.upstream, len(tensors))
        results = SecondDerivative.apply(*settings, *tensors, *vectors)  # type: ignore[no-untyped-call]
        results = (*results, *(None,) * (len(tensors) - len(results)))
        needed = ctx.needs_input_grad[3:]
        return (None, None, None, *(result if need else None for result, need in zip(results, needed, strict=True)))


class SecondDerivative(SweepFunction):
    """``second(*tensors, *vectors)``, linear in the vectors, by which alone it is differentiated, as ``hvp`` does."""

    @staticmethod
    def forward(first: Expression, second: Expression, upstream: int, count: int, *tensors: Tensor | None) -> Results:
        """Arguments: ``count`` tensors, and one vector for each result of ``first``."""
        return _in_full(second, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        *ctx.settings, ctx.upstream, ctx.count = inputs[:4]
        ctx.save_for_backward(*inputs[4:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor | None) -> tuple[Tensor | None, ...]:
        """The second derivatives are symmetric, so this is the derivative of ``first`` along ``vectors``."""
        saved = ctx.saved_tensors
        tensors, inputs = list(saved[: ctx.count]), len(saved) - ctx.count
        edges = ctx.next_functions[: sum(tensor is not None for tensor in tensors)]
        nodes = [node for node, _ in edges if node is not None]
        if torch.is_grad_enabled() or any(torch._C._will_engine_execute_node(node) for node in nodes):
            raise RuntimeError(
                "a fused loss can be differentiated twice, and a third derivative was asked for: use the dense losses "
                "of robustdml_ops.python_ref, which are ordinary differentiable expressions"
            )
        first, second = ctx.settings
        along_inputs = _in_full(second, *tensors, *vectors[:inputs])[:inputs]
        for place in (ctx.upstream, ctx.upstream + 1):
            vector = vectors[place] if place < len(vectors) else None
            tensors[place] = torch.zeros_like(tensors[place]) if vector is None else vector
        along_upstream = first(*tensors)
        needed = ctx.needs_input_grad[4 + ctx.count :]
        results = (
            (of_upstream if of_inputs is None else of_inputs + of_upstream) if need else None
            for of_inputs, of_upstream, need in zip(along_inputs, along_upstream, needed, strict=True)
        )
        return (None, None, None, None, *(None,) * ctx.count, *results)


def _in_full(second: Expression, *tensors: Tensor | None) -> Results:
    """``second(*tensors)`` in the compute type: its expressions are PyTorch's, which autocast would round."""
    device = next(tensor.device for tensor in tensors if tensor is not None)
    with without_autocast(device):
        return second(*tensors)


def second_derivatives(
    value: Callable[..., Tensor],
    tensors: Sequence[Tensor | None],
    vectors: Sequence[Tensor | None],
    by_rows: Sequence[bool],
    rows: int,
    length: int,
) -> Results:
    """Gradients of Σ ⟨∂value/∂t, vector of t⟩ by every tensor t, in chunks of the rows of those ``by_rows``."""
    totals = [
        None if t is None else torch.zeros_like(t, memory_format=torch.contiguous_format if sliced else None)
        for t, sliced in zip(tensors, by_rows, strict=True)
    ]
    for first in range(0, 0 if all(v is None for v in vectors) else length, rows):
        last = min(length, first + rows)
        with torch.enable_grad():
            parts = _rows(tensors, by_rows, first, last)
            leaves = [None if part is None else part.detach().requires_grad_() for part in parts]
            along = zip(leaves, _rows(vectors, by_rows, first, last), strict=True)
            pairs = [(leaf, v) for leaf, v in along if leaf is not None and v is not None]
            gradients = torch.autograd.grad(
                value(first, last, *leaves), [leaf for leaf, _ in pairs], create_graph=True, allow_unused=True
            )
            terms = [(g * v).sum() for g, (_, v) in zip(gradients, pairs, strict=True) if g is not None]
            if not terms:
                continue
            given = [leaf for leaf in leaves if leaf is not None]
            found = iter(torch.autograd.grad(torch.stack(terms).sum(), given, allow_unused=True))
        for total, sliced in zip(totals, by_rows, strict=True):
            result = None if total is None else next(found)
            if total is not None and result is not None and sliced:
                total[first:last] = result
            elif total is not None and result is not None:
                total += result
    return tuple(totals)


def _rows(tensors: Sequence[Tensor | None], by_rows: Sequence[bool], first: int, last: int) -> list[Tensor | None]:
    return [t[first:last] if t is not None and sliced else t for t, sliced in zip(tensors, by_rows, strict=True)]
