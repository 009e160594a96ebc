"""Progress of whatever reports steps: a bar on a terminal, lines with the time of day everywhere else."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from robustdml_ops.recipes.recorder import Recorder

# Told what is being done, the steps done and the steps in all (0 where unknown).
OnProgress = Callable[[str, int, int], None]

# Of a log, in seconds. A bar shows a loss twice a second: on a GPU each look at it waits for the device.
BETWEEN_LINES, BETWEEN_LOSSES = 10.0, 0.5
# Columns of a terminal below which the bar itself makes room for the words.
NARROW = 70


class Follower(Recorder):
    """Follows a run, or anything else that reports steps: `OnProgress`, and a `Recorder`."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a report.

        Parameters
        ----------
        what : str
            What is being done.
        done, total : int
            Steps.
        """


@contextmanager
def progress_bar(title: str) -> Iterator[Follower]:
    """Show on stderr what is being done.

    On a terminal that is one line that is drawn anew, and goes when the work is done. Elsewhere, as in a file or a
    pipe, it is a line every ten seconds and one for each epoch.

    Parameters
    ----------
    title : str
        What the lines begin with.

    Yields
    ------
    Follower
        Takes the reports.
    """
    console = Console(stderr=True)
    # Not console.is_terminal: with FORCE_COLOR it is true of a file, too, which would then be full of redrawn bars.
    if sys.stderr is None or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield Lines(title)
        return
    bar = [] if console.width < NARROW else [BarColumn()]
    columns = (TextColumn("{task.description}"), *bar, MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(title, progress)


def silent(what: str, done: int, total: int) -> None:
    """Take a report and show nothing.

    Parameters
    ----------
    what : str
        What is being done.
    done, total : int
        Steps.
    """


class Bar(Follower):
    """One line of a terminal.

    Parameters
    ----------
    title : str
        What it begins with.
    progress : Progress
        Draws it.
    """

    def __init__(self, title: str, progress: Progress) -> None:
        self._title, self._progress = title, progress
        self._task = progress.add_task(title, total=None)
        self._loss, self._looked = "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show a report.

        Parameters
        ----------
        what : str
            What is being done.
        done, total : int
            Steps.
        """
        loss = self._loss if total else ""
        self._progress.update(
            self._task, description=f"{self._title} · {what}{loss}", completed=done, total=total or None
        )

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        """Look at the loss now and then.

        Parameters
        ----------
        step, steps : int
            Not used.
        loss : Tensor or None
            Of a batch.
        """
        if loss is not None and time.monotonic() - self._looked > BETWEEN_LOSSES:
            self._loss, self._looked = f" · loss {float(loss):.4g}", time.monotonic()


class Lines(Follower):
    """Lines of a log, each with date and time.

    Parameters
    ----------
    title : str
        What they begin with.
    """

    def __init__(self, title: str) -> None:
        self._title, self._what, self._last = title, "", 0.0
        self._stage, self._training = _Pace(0), _Pace(0)
        self._epochs, self._epochs_done = 0, 0
        self._loss: Tensor | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Write a line where one is due: the last is some while ago, or something without steps begins.

        Parameters
        ----------
        what : str
            What is being done.
        done, total : int
            Steps.
        """
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
            left = self._training.left(self._epochs_done + done / total, self._epochs)
        rate = self._stage.rate(done)
        self._write(*words, *([f"{rate:.3g} steps/s"] if rate else []), left)

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        """Begin to measure how long an epoch takes.

        Parameters
        ----------
        history : sequence of dict
            Of epochs done.
        epochs : int
            To be done in all.
        """
        self._epochs, self._epochs_done = epochs, len(history)
        self._training = _Pace(len(history))
        if history:
            self._write(f"goes on after epoch {len(history)} of {epochs}")

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        """Keep the loss, unread.

        Parameters
        ----------
        step, steps : int
            Not used.
        loss : Tensor or None
            Of a batch.
        """
        if self._epochs_done == self._training.first and step == 1:
            # What came before the first step, as the first phase of a method, is no part of an epoch.
            self._training = _Pace(self._epochs_done)
        self._loss = loss if loss is not None else self._loss

    def epoch(self, record: dict[str, float]) -> None:
        """Write what came out of an epoch.

        Parameters
        ----------
        record : dict
            Its line of the history.
        """
        self._epochs_done = int(record["epoch"])
        self._write(
            f"epoch {self._epochs_done} of {self._epochs} done",
            f"loss {record['loss']:.4g}",
            f"Recall@1 {record['precision_at_1']:.4f}",
            f"{record['seconds']:.3g} s",
            self._training.left(self._epochs_done, self._epochs),
        )

    def close(self) -> None:
        """Forget the loss: what follows is no training."""
        self._loss = None

    def _write(self, *words: str) -> None:
        self._last = time.monotonic()
        text = ", ".join(word for word in words if word)
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S} {self._title}: {text}", file=sys.stderr, flush=True)


class _Pace:
    """How fast something goes since it was at `first`."""

    def __init__(self, first: float) -> None:
        self.first, self._start = first, time.monotonic()

    def rate(self, done: float) -> float:
        """A second; 0 before there is anything to measure."""
        elapsed = time.monotonic() - self._start
        return (done - self.first) / elapsed if elapsed > 0 else 0.0

    def left(self, done: float, total: float) -> str:
        """Words for the time that is left, none where it cannot be told or nothing is left."""
        rate = self.rate(done)
        if not rate or done >= total:
            return ""
        return f"{timedelta(seconds=round((total - done) / rate))} left"
