"""Modules whose buffers keep their types."""

from collections.abc import Callable

from torch import Tensor, nn


class TypedBuffers(nn.Module):
    """``.half()`` and the like move buffers and convert none: sums of classes would drift, a large κ would overflow."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TypedBuffers":
        def move(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            return moved if moved.dtype == buffer.dtype else buffer.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self
