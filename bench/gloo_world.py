"""A step on gloo processes of this machine, of one thread each: its time and the bytes handed to the collectives."""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

_STEPS = 5


class Handed(TorchDispatchMode):
    """Bytes that a process hands to the collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "c10d":
            given = arguments[0] if "allreduce" in function._schema.name else arguments[1]
            for tensor in [given] if isinstance(given, torch.Tensor) else given:
                self.bytes += tensor.numel() * tensor.element_size()
        return function(*arguments, **(options or {}))


def measured(step: Callable[[], object]) -> tuple[float, int]:
    """Median seconds of a step, and the bytes that the first step, which is not timed, hands to the collectives."""
    with Handed() as handed:
        step()
    seconds = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), handed.bytes


def run_processes(steps: Callable[..., Any], processes: int, *shape: int) -> list[Any]:
    """Results of ``steps(*shape, processes)`` by rank."""
    context = multiprocessing.get_context("spawn")
    store, results = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), context.SimpleQueue()
    given = (steps, store.port, (*shape, processes), results)
    started = [context.Process(target=_run, args=(rank, *given)) for rank in range(processes)]
    for process in started:
        process.start()
    found = sorted(results.get() for _ in started)
    for process in started:
        process.join()
    return [value for _, value in found]


def compare(steps: Callable[..., Any], predicted: Callable[[int, int, int], int], what: str) -> None:
    """Run ``steps`` on W processes of b samples, then on one with W threads and W·b samples, and print both.

    The command line is ``SIZE D b W``. ``steps(SIZE, D, b, W)`` gives seconds a step, bytes of ``what`` in a process,
    and bytes handed to the collectives in a step.
    """
    size, D, samples, processes = map(int, sys.argv[1:5])
    for rank, (seconds, held, handed) in enumerate(run_processes(steps, processes, size, D, samples)):
        print(
            f"rank {rank}: {what} {held / 1e6:.1f} MB, {handed} bytes a step (predicted "
            f"{predicted(samples, D, processes)}), {seconds * 1e3:.0f} ms"
        )
    torch.set_num_threads(processes)
    seconds, held, _ = steps(size, D, processes * samples, 1)
    print(f"one process, {processes} threads: {what} {held / 1e6:.1f} MB, {seconds * 1e3:.0f} ms")


def _run(rank: int, steps: Callable[..., Any], port: int, shape: tuple[int, ...], results: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=shape[-1])
    results.put((rank, steps(*shape)))
    dist.barrier()
