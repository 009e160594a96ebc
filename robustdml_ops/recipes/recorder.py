"""Whoever follows a run while it trains, and keeps or shows what it does."""

from collections.abc import Sequence

from torch import Tensor


class Recorder:
    """Follows a run. This one does nothing: a subclass takes what it needs."""

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        """Take note that settings and folder are accepted, and that training begins.

        Parameters
        ----------
        history : sequence of dict
            A record for each epoch that is done already, where the run goes on from a checkpoint.
        epochs : int
            To be done in all.
        """

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        """Take note of a step.

        Parameters
        ----------
        step, steps : int
            Its number from 1, and those of an epoch.
        loss : Tensor or None
            Of its batch, where it trains, (): reading it waits for the device. None where the filter kept nothing.
        """

    def epoch(self, record: dict[str, float]) -> None:
        """Take note of an epoch, before the checkpoint is written.

        Parameters
        ----------
        record : dict
            Its line of the history.
        """

    def close(self) -> None:
        """Training is over, or has failed."""


class Follower(Recorder):
    """Follows a run, or anything else that reports steps, as `robustdml_ops.recipes.progress.OnProgress` does."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a report.

        Parameters
        ----------
        what : str
            What is being done.
        done, total : int
            Steps.
        """
