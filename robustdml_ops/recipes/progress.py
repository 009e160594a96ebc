"""A progress bar for whatever reports steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# Told what is being done, the steps done and the steps in all (0 where unknown).
OnProgress = Callable[[str, int, int], None]


@contextmanager
def progress_bar(title: str) -> Iterator[OnProgress]:
    """Show one line on stderr that follows reports of (what, steps done, steps in all), and goes when the work is done.

    Parameters
    ----------
    title : str
        What the line begins with.

    Yields
    ------
    callable
        Takes the reports.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=f"{title} · {what}", completed=done, total=total or None)

        yield report


def silent(what: str, done: int, total: int) -> None:
    """Take a report and show nothing.

    Parameters
    ----------
    what : str
        What is being done.
    done, total : int
        Steps.
    """
