"""The signals by which a cluster asks a run to end, and checkpoints within an epoch."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from robustdml.run.run import Run

T = TypeVar("T")

# Windows has the first alone.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
EX_TEMPFAIL = 75
_GO_ON, _SAVE, _END = range(3)


class Preempted(SystemExit):
    """A signal has ended the run; the exit status says that it may be queued again."""

    def __init__(self, told: str) -> None:
        super().__init__(EX_TEMPFAIL)
        self.told = told  # Empty where another process tells it


class EndSignals:
    """Takes the signals, in the main thread, while it is entered: the first raises `Preempted`, or waits if held."""

    def __init__(self) -> None:
        self.received = ""  # Name of the signal
        self.held = False
        self._process = os.getpid()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "EndSignals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def unless_received(self, work: Callable[[], T]) -> T | None:
        """Do work that a signal breaks off, though signals are held; None where it did."""
        try:
            self.held = False
            try:
                return None if self.received else work()
            finally:
                self.held = True
        except Preempted:
            self.held = True
            return None

    def _receive(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._process:  # A worker that was forked ends as if there were no handler.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        is_first, self.received = not self.received, signal.Signals(number).name
        if is_first and not self.held:
            raise Preempted(f"ended by {self.received}")


class Pauses:
    """Saves a run between steps, if it is kept: every `every` seconds, and before it ends by a signal."""

    def __init__(self, run: Run, save: Callable[[], None] | None, every: float | None, signals: EndSignals) -> None:
        self._run, self._save, self._every, self._signals = run, save, every, signals
        self._saved = time.monotonic()

    def __call__(self) -> None:
        """Save or end where one of the processes has to; all of them call it."""
        if self._save is None:
            return
        received, world = self._signals.received, self._run.world
        is_due = self._every is not None and time.monotonic() - self._saved >= self._every
        wanted = world.largest(_END if received else _SAVE if is_due and world.leads else _GO_ON)
        if wanted != _GO_ON:
            self.save()
        if wanted == _END:
            world.largest(_END)  # No process ends before the first has written: a launcher would end that, too.
            by = received or "a signal to another process"
            raise Preempted(f"ended by {by} after {self._run.position}, which is saved" if world.leads else "")

    def save(self) -> None:
        """Save now."""
        if self._save is not None:
            self._save()
            self._saved = time.monotonic()
