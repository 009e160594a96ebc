"""Times of a step: on the device, on the host alone, launches and memory."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

ROUNDS, SECONDS = 30, 0.6  # at most, of the timed rounds
FLUSHED = 1 << 28  # bytes: more than any cache holds


@dataclass(frozen=True)
class Step:
    """What is timed, and the leaves whose gradients it makes afresh."""

    run: Callable[[], object]
    leaves: tuple[Tensor, ...] = field(default=())

    @classmethod
    def of_loss(cls, loss: Callable[[], Tensor], *leaves: Tensor) -> "Step":
        """As a training step does it: ``zero_grad(set_to_none=True)``, forward, backward."""

        def run() -> None:
            for leaf in leaves:
                leaf.grad = None
            loss().backward()

        return cls(run, leaves)


def measure(step: Step, device: torch.device, seconds: float = SECONDS) -> dict[str, Any]:
    """Medians in seconds, and what was counted.

    Returns
    -------
    dict
        ``step_s``: from the first launch to the end of the last kernel, the caches emptied before. ``spread_s``: its
        interquartile range. ``host_s``: until the host was free. On a GPU also ``busy_s`` and ``launches``: the sum of
        all kernels' times, and their number; ``beyond_bytes``: peak memory beyond inputs and gradients.
    """
    on_gpu = device.type == "cuda"
    for _ in range(3 if on_gpu else 0):
        step.run()
    scratch = torch.empty(FLUSHED, dtype=torch.uint8, device=device) if on_gpu else None
    steps, hosts = [], []
    while len(steps) < (ROUNDS if on_gpu else 1) and (len(steps) < 3 or sum(steps) < seconds):
        took, host = _once_on_gpu(step, scratch) if scratch is not None else _once(step)
        steps.append(took)
        hosts.append(host)
    quartiles = statistics.quantiles(steps, n=4) if len(steps) > 1 else [0.0, 0.0, 0.0]
    found: dict[str, Any] = {
        "step_s": statistics.median(steps),
        "spread_s": quartiles[2] - quartiles[0],
        "host_s": statistics.median(hosts),
        "rounds": len(steps),
    }
    return found | (_counted(step) if on_gpu else {})


def _once(step: Step) -> tuple[float, float]:
    start = time.perf_counter()
    step.run()
    took = time.perf_counter() - start
    return took, took


def _once_on_gpu(step: Step, scratch: Tensor) -> tuple[float, float]:
    scratch.zero_()
    torch.cuda.synchronize()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start = time.perf_counter()
    first.record()
    step.run()
    last.record()
    host = time.perf_counter() - start
    last.synchronize()
    return first.elapsed_time(last) * 1e-3, host


def _counted(step: Step) -> dict[str, Any]:
    """Peak memory, and kernels by PyTorch's profiler."""
    for leaf in step.leaves:
        leaf.grad = None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step.run()
    torch.cuda.synchronize()
    gradients = sum(leaf.grad.nbytes for leaf in step.leaves if leaf.grad is not None)
    beyond = torch.cuda.max_memory_allocated() - before - gradients
    return {"beyond_bytes": beyond, "gradient_bytes": gradients, **_profiled(step)}


def _profiled(step: Step) -> dict[str, Any]:
    """A profiler that may not look, as on some shared machines, costs its own facts alone."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step.run()
            torch.cuda.synchronize()
        kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    except (RuntimeError, AssertionError) as error:
        return {"not_profiled": str(error)[:200]}
    if not kernels:
        return {"not_profiled": "the profiler saw no kernel"}
    return {"busy_s": sum(event.time_range.elapsed_us() for event in kernels) * 1e-6, "launches": len(kernels)}


def graphed(step: Step) -> Step:
    """The step as one CUDA graph, gradients in the graph's own memory."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step.run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    return Step(graph.replay)
