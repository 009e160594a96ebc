"""Runs in parallel processes; each outcome is written when it is there, so that a failure costs one run."""

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
from robustdml.evaluation import untouched_metrics
from robustdml.networks.preparation import prepare, resolve_device
from robustdml.progress import OnProgress, silent

DIED = "its process ended before the run did, killed perhaps for want of memory; fewer workers may help"


@dataclass(frozen=True)
class _Job:
    """Sent to every worker process."""

    sources: Mapping[str, Source]  # By name of the data set
    untouched: dict[str, dict[str, float]]  # Metrics of its untouched features, where these are the same for all runs
    device: str  # As in `train`


# Set once in each worker process.
_job: _Job

_Pools = Callable[[int], ProcessPoolExecutor]
_Found = tuple[Cell, dict[str, Any] | str]


def default_workers() -> int:
    """One process for each core, at most eight: a run on frozen features hardly gains from a second core."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def run_missing(
    cells: Sequence[Cell],
    sources: Mapping[str, Source],
    folder: Path,
    device: str,
    workers: int,
    on_progress: OnProgress,
) -> dict[Cell, str]:
    """Train every cell without an outcome, write each outcome at once; return the messages of cells that failed."""
    missing = [cell for cell in cells if read_outcome(cell, folder) is None]
    done, failures = len(cells) - len(missing), dict[Cell, str]()
    on_progress("runs", done, len(cells))
    if not missing:
        return failures
    needed = {cell.data: sources[cell.data] for cell in missing}
    # A network that is trained whole may start from random weights: its runs evaluate it themselves.
    frozen = dict.fromkeys(cell.data for cell in missing if not cell.config.finetune)
    job = _Job(needed, {name: _untouched(needed[name], device) for name in frozen}, device)
    # At most the threads that PyTorch was given, as by OMP_NUM_THREADS.
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
    """Yield each cell with its outcome, or with the message of its failure."""
    waiting = deque(cells)
    while waiting:
        lost = yield from _until_one_dies(waiting, workers, pools)
        # One of these killed its process and the pool with it; run alone, the culprit shows itself.
        for cell in lost:
            if (yield from _until_one_dies(deque([cell]), 1, pools)):
                yield cell, DIED


def _until_one_dies(waiting: deque[Cell], workers: int, pools: _Pools) -> Generator[_Found, None, list[Cell]]:
    """Run waiting cells; return the cells that were running when a process died, none at the end."""
    running: dict[Future[dict[str, Any]], Cell] = {}
    pool = pools(workers)
    try:
        while waiting or running:
            # Submit one cell a process: a dead pool then loses only the running cells.
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
                except Exception as error:  # an error in one run must not lose the others
                    found = f"{type(error).__name__}: {error}"
                yield running.pop(future), found
    except BrokenProcessPool:
        return list(running.values())
    finally:
        # Ctrl-C: waiting cells are dropped, running ones lost, finished ones on the disk.
        pool.shutdown(wait=False, cancel_futures=True)
    return []


def _start(job: _Job, threads: int) -> None:
    global _job
    _job = job
    torch.set_num_threads(threads)
    # A killed parent sends no signal: without this thread its processes would wait for work for ever.
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
