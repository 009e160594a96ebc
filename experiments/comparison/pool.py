"""Runs side by side in processes of their own; what is done stays done, whatever becomes of the others."""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from experiments.comparison.cells import Cell
from experiments.comparison.outcomes import read_outcome, write_outcome
from experiments.comparison.sources import Source
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.errors import UsageError
from robustdml.networks.preparation import prepare, resolve_device
from robustdml.progress import OnProgress, silent
from robustdml.untouched import untouched_metrics

DIED = "its process ended before the run did, killed perhaps for want of memory; fewer workers may help"


@dataclass(frozen=True)
class _Job:
    """What the processes work on."""

    sources: Mapping[str, Source]  # Of each data set
    untouched: dict[str, dict[str, float]]  # Metrics of each as it is, where that is the same for all runs
    device: str  # As in `train`


# Of a worker process.
_job: _Job

_Pools = Callable[[int], ProcessPoolExecutor]
_Found = tuple[Cell, dict[str, Any] | str]


def default_workers() -> int:
    """One process for each core, up to eight: a run on frozen features hardly gains from a second core."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def run_missing(
    cells: Sequence[Cell],
    sources: Mapping[str, Source],
    folder: Path,
    device: str,
    workers: int,
    on_progress: OnProgress,
) -> dict[Cell, str]:
    """Train every cell that has no outcome yet, and keep each outcome as soon as it is there."""
    missing = [cell for cell in cells if read_outcome(cell, folder) is None]
    done, failures = len(cells) - len(missing), dict[Cell, str]()
    on_progress("runs", done, len(cells))
    if not missing:
        return failures
    needed = {cell.data: sources[cell.data] for cell in missing}
    # A network that trains as a whole may start untrained, by its seed: its runs look for themselves.
    frozen = dict.fromkeys(cell.data for cell in missing if not cell.config.finetune)
    job = _Job(needed, {name: _untouched(needed[name], device) for name in frozen}, device)
    # No more than PyTorch has been given, as by OMP_NUM_THREADS.
    threads = max(1, min(torch.get_num_threads(), default_workers() // workers))
    pools = partial(ProcessPoolExecutor, mp_context=get_context("spawn"), initializer=_start, initargs=(job, threads))
    for cell, found in _outcomes(missing, workers, pools):
        if isinstance(found, str):
            failures[cell] = found
        else:
            write_outcome(cell, folder, found)
        done += 1
        on_progress(cell.title, done, len(cells))
    return failures


def _untouched(source: Source, device: str) -> dict[str, float]:
    chosen = resolve_device(device)
    return untouched_metrics(prepare(TrainingConfig(), source.open(), chosen), chosen, silent)


def _outcomes(cells: Sequence[Cell], workers: int, pools: _Pools) -> Generator[_Found, None, None]:
    """Give each cell with its outcome, or with what it said when it failed."""
    waiting = deque(cells)
    while waiting:
        lost = yield from _until_one_dies(waiting, workers, pools)
        # One of these ended its process, and all of them were lost with it: alone it is known which.
        for cell in lost:
            if (yield from _until_one_dies(deque([cell]), 1, pools)):
                yield cell, DIED


def _until_one_dies(waiting: deque[Cell], workers: int, pools: _Pools) -> Generator[_Found, None, list[Cell]]:
    """Take cells from those that wait; return those that were under way when a process died, none at the end."""
    running: dict[Future[dict[str, Any]], Cell] = {}
    pool = pools(workers)
    try:
        while waiting or running:
            # No more than there are processes: what is lost with a process is then only what was under way.
            while waiting and len(running) < workers:
                future = pool.submit(_run, waiting[0])
                running[future] = waiting.popleft()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                found: dict[str, Any] | str
                try:
                    found = future.result()
                except UsageError as error:
                    found = str(error)
                except BrokenProcessPool:
                    raise
                except Exception as error:  # a defect or a lack of memory in one run is no reason to lose the others
                    found = f"{type(error).__name__}: {error}"
                yield running.pop(future), found
    except BrokenProcessPool:
        return list(running.values())
    finally:
        # Ctrl-C: what has not begun is dropped, what is under way is lost, what is done is on the disk.
        pool.shutdown(wait=False, cancel_futures=True)
    return []


def _start(job: _Job, threads: int) -> None:
    global _job
    _job = job
    torch.set_num_threads(threads)
    # A parent that is killed cannot say so: without this its processes would wait for work for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _open(name: str) -> RetrievalData:
    return _job.sources[name].open()


def _run(cell: Cell) -> dict[str, Any]:
    return cell.run(_open(cell.data), _job.untouched.get(cell.data), _job.device)
