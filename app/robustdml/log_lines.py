"""Progress as lines of a log, each with date and time."""

import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from torch import Tensor

from robustdml.recorder import Follower

# Seconds.
BETWEEN_LINES = 10.0


class Lines(Follower):
    """Lines of a log, each with date and time."""

    def __init__(self, title: str) -> None:
        self._title, self._what, self._last = title, "", 0.0
        self._stage = _Pace(0)
        # Measured from the first step: what comes before, as the first phase of a method, is no part of an epoch.
        self._training: _Pace | None = None
        self._epochs, self._epochs_done = 0, 0
        self._loss: Tensor | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Write a line where one is due: the last is some while ago, or something without steps begins."""
        begins = what != self._what
        if begins:
            self._what, self._stage = what, _Pace(done)
        if not total:
            if begins:
                self._write(what)
            return
        if time.monotonic() - self._last < BETWEEN_LINES:
            return
        words, left = [what, f"step {done}/{total}"], self._stage.left(done, total)
        if self._loss is not None:
            words.append(f"loss {float(self._loss):.4g}")
        if self._training is not None:
            left = self._training.left(self._epochs_done + done / total, self._epochs)
        rate = self._stage.rate(done)
        self._write(*words, *([f"{rate:.3g} steps/s"] if rate else []), left)

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        """Take note of the epochs."""
        self._epochs, self._epochs_done = epochs, len(history)
        if history:
            self._write(f"goes on after epoch {len(history)} of {epochs}")

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        """Keep the loss, unread; from the first step on, measure how long an epoch takes."""
        if self._training is None:
            self._training = _Pace(self._epochs_done + step / steps)
        self._loss = loss if loss is not None else self._loss

    def epoch(self, record: dict[str, float]) -> None:
        """Write what came out of an epoch."""
        self._epochs_done = int(record["epoch"])
        self._write(
            f"epoch {self._epochs_done} of {self._epochs} done",
            f"loss {record['loss']:.4g}",
            f"Recall@1 {record['precision_at_1']:.4f}" if "precision_at_1" in record else "",
            f"{record['seconds']:.3g} s",
            "" if self._training is None else self._training.left(self._epochs_done, self._epochs),
        )

    def close(self) -> None:
        """Forget the training: what follows is none."""
        self._loss = self._training = None

    def _write(self, *words: str) -> None:
        self._last = time.monotonic()
        text = ", ".join(word for word in words if word)
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S} {self._title}: {text}", file=sys.stderr, flush=True)


class _Pace:
    """How fast something goes since it was at `first`, which is when this is made."""

    def __init__(self, first: float) -> None:
        self._first, self._start = first, time.monotonic()

    def rate(self, done: float) -> float:
        """A second; 0 before there is anything to measure."""
        elapsed = time.monotonic() - self._start
        return (done - self._first) / elapsed if elapsed > 0 else 0.0

    def left(self, done: float, total: float) -> str:
        """Words for the time that is left, none where it cannot be told or nothing is left."""
        rate = self.rate(done)
        if not rate or done >= total:
            return ""
        return f"{timedelta(seconds=round((total - done) / rate))} left"
