"""Runs side by side in processes of their own; what is done stays done."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from robustdml_ops.recipes.data import RetrievalData
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.evidence.comparison.cells import Cell, read_outcome, write_outcome
from robustdml_ops.recipes.progress import OnProgress

# Of a worker process: what all its runs train on, and where.
_data: RetrievalData
_device: str


def default_workers() -> int:
    """One process a core that this process may use, up to eight: a run on frozen features hardly gains from a second.

    Returns
    -------
    int
        At least 1.
    """
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def run_missing(
    cells: Sequence[Cell], data: RetrievalData, folder: Path, device: str, workers: int, on_progress: OnProgress
) -> dict[Cell, str]:
    """Train every cell that has no outcome yet, and keep each outcome as soon as it is there.

    Parameters
    ----------
    cells : sequence of Cell
        All runs.
    data : RetrievalData
        What to train on; sent to each process once.
    folder : Path
        Of the comparison.
    device : str
        As in `train`.
    workers : int
        Processes. Cores are shared out among them.
    on_progress : callable
        Told of each run that ends.

    Returns
    -------
    dict
        For each run that failed for a reason of its own, such as a loss that is no longer finite: what it said.
    """
    missing = [cell for cell in cells if read_outcome(cell, folder, data.name) is None]
    done, failures = len(cells) - len(missing), dict[Cell, str]()
    on_progress("runs", done, len(cells))
    if not missing:
        return failures
    threads = max(1, default_workers() // workers)
    executor = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start, initargs=(data, device, threads)
    )
    try:
        futures = {executor.submit(_run, cell): cell for cell in missing}
        for future in as_completed(futures):
            cell = futures[future]
            try:
                write_outcome(cell, folder, future.result())
            except UsageError as error:
                failures[cell] = str(error)
            done += 1
            on_progress(f"{cell.entry.title}, {cell.noise}, seed {cell.seed}", done, len(cells))
    finally:
        # Ctrl-C: what has not begun is dropped, what is under way is lost, what is done is on the disk.
        executor.shutdown(wait=False, cancel_futures=True)
    return failures


def _start(data: RetrievalData, device: str, threads: int) -> None:
    global _data, _device
    _data, _device = data, device
    torch.set_num_threads(threads)


def _run(cell: Cell) -> dict[str, Any]:
    return cell.run(_data, _device)
