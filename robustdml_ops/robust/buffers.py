"""Modules whose buffers keep their types."""

from collections.abc import Callable

from torch import Tensor, nn


class TypedBuffers(nn.Module):
    """``.half()``, ``.to(dtype)`` and the like, here or on a module around, move buffers and convert none.

    Sums of classes would drift in half precision, and a concentration passes its largest number.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TypedBuffers":
        def move(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            return moved if moved.dtype == buffer.dtype else buffer.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self
