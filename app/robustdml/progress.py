"""Progress: a bar on a terminal, lines of a log elsewhere; recorders follow a training run."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from robustdml.errors import UsageError, in_one_line

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# Called with the work at hand, the steps done and the number of steps (0 where unknown).
OnProgress = Callable[[str, int, int], None]

# Seconds: on a GPU each look at a loss waits for the device.
BETWEEN_LOSSES = 0.5
BETWEEN_LINES = 10.0
# Of work that counts samples where other work counts steps.
_OF_SAMPLES = ("features", "checking images", "embedding", "pictures")
# Columns of a terminal below which the bar itself makes room for the words.
NARROW = 70


class Recorder:
    """Follows a run. This one does nothing: a subclass takes what it needs."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a report of steps, of a run or of anything else, as `OnProgress` does."""

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        """Take note that settings and folder are accepted, and that training begins."""

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        """Take note of a step."""

    def epoch(self, record: dict[str, float]) -> None:
        """Take note of an epoch, before the checkpoint is written."""

    def close(self) -> None:
        """Training is over, or has failed."""


@contextmanager
def progress_bar(title: str) -> Iterator[Recorder]:
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


def show_table(table: Table) -> None:
    """Print a table; brackets and colons in its texts are no markup."""
    Console(markup=False, emoji=False).print(table)


class Bar(Recorder):
    """One line of a terminal."""

    def __init__(self, title: str, progress: Progress) -> None:
        self._title, self._progress = title, progress
        self._task = progress.add_task(title, total=None)
        self._loss, self._looked = "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        told = f"{self._title} · {what}{self._loss if total else ''}"
        self._progress.update(self._task, description=in_one_line(told), completed=done, total=total or None)

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        if loss is not None and time.monotonic() - self._looked > BETWEEN_LOSSES:
            self._loss, self._looked = f" · loss {float(loss):.4g}", time.monotonic()


class Lines(Recorder):
    """Lines of a log, each with date and time."""

    def __init__(self, title: str) -> None:
        self._title, self._what, self._done, self._last = title, "", 0, 0.0
        self._stage = _Pace(0)
        # Measured from the first step: what comes before, as the first phase of a method, is no part of an epoch.
        self._training: _Pace | None = None
        self._epochs, self._epochs_done = 0, 0
        self._loss: Tensor | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        # A line is due where the last is some while ago, or something without steps begins.
        begins = what != self._what or done < self._done
        if begins:
            self._what, self._stage = what, _Pace(done)
        self._done = done
        if not total:
            if begins:
                self._write(what)
            return
        if time.monotonic() - self._last < BETWEEN_LINES:
            return
        unit = "sample" if any(word in what for word in _OF_SAMPLES) else "step"
        words, left = [what, f"{unit} {done}/{total}"], self._stage.left(done, total)
        if self._loss is not None:
            words.append(f"loss {float(self._loss):.4g}")
        if self._training is not None:
            left = self._training.left(self._epochs_done + done / total, self._epochs)
        rate = self._stage.rate(done)
        self._write(*words, *([f"{rate:.3g} {unit}s/s"] if rate else []), left)

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        self._epochs, self._epochs_done = epochs, len(history)

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        if self._training is None:
            self._training = _Pace(self._epochs_done + step / steps)
        self._loss = loss if loss is not None else self._loss

    def epoch(self, record: dict[str, float]) -> None:
        self._epochs_done = int(record["epoch"])
        self._write(
            f"epoch {self._epochs_done} of {self._epochs} done",
            f"loss {record['loss']:.4g}",
            f"Recall@1 {record['precision_at_1']:.4f}" if "precision_at_1" in record else "",
            f"{record['seconds']:.3g} s",
            f"{record['samples'] / record['seconds']:.3g} samples/s" if record.get("samples") else "",
            "" if self._training is None else self._training.left(self._epochs_done, self._epochs),
        )

    def close(self) -> None:
        self._loss = self._training = None

    def _write(self, *words: str) -> None:
        self._last = time.monotonic()
        text = ", ".join(word for word in words if word)
        print(f"{datetime.now():%Y-%m-%d %H:%M:%S} {self._title}: {in_one_line(text)}", file=sys.stderr, flush=True)


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


class TensorBoard(Recorder):
    """Writes each number of an epoch's record for TensorBoard, as a scalar with the epoch as its step."""

    def __init__(self, folder: Path) -> None:
        if find_spec("tensorboard") is None:
            raise UsageError("logger tensorboard needs a package: install it with `pip install tensorboard`")
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def start(self, history: Sequence[dict[str, float]], epochs: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._folder.is_symlink():  # In a folder of a stranger it may lead anywhere.
            raise UsageError(f"{self._folder}: a link, where a folder of the run is needed; look at it, and delete it")
        # A file where the folder should be is told in plain words; the writer's thread would only end.
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(str(self._folder), purge_step=1)
        for record in history:
            self.epoch(record)

    def epoch(self, record: dict[str, float]) -> None:
        assert self._writer is not None
        for name, value in record.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, int(record["epoch"]))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
