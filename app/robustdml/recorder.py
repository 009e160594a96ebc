"""Whoever follows a run while it trains, and keeps or shows what it does."""

from collections.abc import Sequence

from torch import Tensor


class Recorder:
    """Follows a run. This one does nothing: a subclass takes what it needs."""

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        """Take note that settings and folder are accepted, and that training begins."""

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        """Take note of a step."""

    def epoch(self, record: dict[str, float]) -> None:
        """Take note of an epoch, before the checkpoint is written."""

    def close(self) -> None:
        """Training is over, or has failed."""


class Follower(Recorder):
    """Follows a run, or anything else that reports steps, as `robustdml.progress.OnProgress` does."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a report."""
