"""Modules whose buffers keep their types."""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess


class TypedBuffers(nn.Module):
    """``.half()`` and the like move buffers and convert none: sums of classes would drift, a large κ would overflow."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TypedBuffers":
        def move(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            return moved if moved.dtype == buffer.dtype else buffer.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self


class ClassBuffers(TypedBuffers):
    """A module of one process, or of the classes of all; ``robustdml_ops.distributed`` sets ``shards``."""

    shards: OneProcess = ONE_PROCESS
    class_buffers: ClassVar[tuple[str, ...]] = ()

    def class_dimensions(self) -> dict[str, int]:
        """Buffers with an entry for each class, and the dimension that counts the classes."""
        return dict.fromkeys(self.class_buffers, 0)
