"""Base class of losses that can be sharded: their hooks, their classes, and the call on a joint batch."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess, settings_of


class ShardableLoss:
    """A loss of one process, or of the samples and classes of all; ``robustdml_ops.distributed`` sets ``shards``."""

    shards: OneProcess = ONE_PROCESS
    shown: ClassVar[tuple[str, ...]] = ()  # settings in ``repr``

    def class_dimensions(self) -> dict[str, int]:
        """Parameters with entries for each class, and the dimension that counts the classes."""
        return {}

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)

    def _common_settings(self) -> dict[str, object]:
        """Numbers and names that must be equal on all processes."""
        return settings_of(self)  # type: ignore[arg-type]  # a module, by its other base class

    def _of_joint_batch(self, check: Callable[[], dict[str, Tensor | None]], loss: Callable[..., Tensor]) -> Tensor:
        """``loss`` of the rows, by name, that ``check`` returns on each process."""
        rows = self.shards.agree(check, self._common_settings() if self.shards.divided else {})
        joint: dict[str, Any] = {name: self.shards.gather(values) for name, values in rows.items()}
        return self.shards.same_upstream(self.shards.guard(partial(loss, **joint)))
