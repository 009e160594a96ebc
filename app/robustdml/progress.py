"""Progress of whatever reports steps: a bar on a terminal, lines with the time of day everywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from robustdml.log_lines import Lines
from robustdml.recorder import Follower

# Told what is being done, the steps done and the steps in all (0 where unknown).
OnProgress = Callable[[str, int, int], None]

# Seconds: on a GPU each look at a loss waits for the device.
BETWEEN_LOSSES = 0.5
# Columns of a terminal below which the bar itself makes room for the words.
NARROW = 70


@contextmanager
def progress_bar(title: str) -> Iterator[Follower]:
    """Show progress on stderr: one line drawn anew on a terminal, lines of a log elsewhere."""
    console = Console(stderr=True)
    # Not console.is_terminal: with FORCE_COLOR it is true of a file, too, which would then be full of redrawn bars.
    if sys.stderr is None or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield Lines(title)
        return
    bar = [] if console.width < NARROW else [BarColumn()]
    columns = (TextColumn("{task.description}", markup=False), *bar, MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(title, progress)


def silent(what: str, done: int, total: int) -> None:
    """Take a report and show nothing."""


class Bar(Follower):
    """One line of a terminal."""

    def __init__(self, title: str, progress: Progress) -> None:
        self._title, self._progress = title, progress
        self._task = progress.add_task(title, total=None)
        self._loss, self._looked = "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show a report."""
        loss = self._loss if total else ""
        self._progress.update(
            self._task, description=f"{self._title} · {what}{loss}", completed=done, total=total or None
        )

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        """Look at the loss now and then."""
        if loss is not None and time.monotonic() - self._looked > BETWEEN_LOSSES:
            self._loss, self._looked = f" · loss {float(loss):.4g}", time.monotonic()
