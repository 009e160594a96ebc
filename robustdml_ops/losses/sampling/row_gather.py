"""Row gather whose gradient is dense, or passed to a callback."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.gradient_memory import gradient_buffer
from robustdml_ops.engine.rows.backend import by_columns, rows_at

# Takes rows (n,) int64, distinct, and dL/drows (n, D) in the type of the matrix.
Receiver = Callable[[Tensor, Tensor], None]


def take_rows(matrix: Tensor, rows: Tensor, receiver: Receiver | None = None) -> Tensor:
    """Distinct rows (n, D) of a matrix (C, D); a ``receiver`` gets their gradient in place of the matrix."""
    taken: Tensor = TakenRows.apply(matrix, rows, receiver)  # type: ignore[no-untyped-call]
    return taken


class TakenRows(torch.autograd.Function):
    """Autograd of :func:`take_rows`."""

    @staticmethod
    def forward(matrix: Tensor, rows: Tensor, receiver: Receiver | None) -> Tensor:
        """Of a matrix (C, D)."""
        return rows_at(matrix, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the rows, and the matrix for its layout."""
        ctx.save_for_backward(*inputs[:2])
        ctx.receiver = inputs[2]

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, None, None]:
        """The dense gradient, or none."""
        matrix, rows = ctx.saved_tensors
        if ctx.receiver is not None:
            if torch.is_grad_enabled():
                raise RuntimeError("a receiver's rows have no second derivative: leave create_graph=True out")
            ctx.receiver(rows, G)
            return None, None, None
        if torch.is_grad_enabled():  # a graph of the gradient
            return torch.zeros_like(matrix).index_copy(0, rows, G), None, None
        buffer = gradient_buffer(matrix).zero_()
        if by_columns(matrix):
            buffer.t().index_copy_(1, rows, G.t())
        else:
            buffer.index_copy_(0, rows, G)
        return buffer, None, None
