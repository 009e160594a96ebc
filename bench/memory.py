"""Peak memory of one step on the CPU, in a process of its own: ``python -m bench.memory CONTENDER B C D`` prints JSON.

Three figures in MB: the whole process at its peak; the inputs and their gradients; and what the step took beyond them.
"""

import json
import sys
from pathlib import Path

import torch

from .workloads import Shape, Workload


def resident(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def peak(contender: str, shape: Shape) -> dict[str, float]:
    """Run ``contender`` at ``shape`` and report the peak of a step."""
    workload = Workload(shape, "cpu")
    step = workload.contender(contender)
    warm = Workload(Shape(shape.B, 640, shape.D), "cpu")
    warm.contender(contender)()  # thread pools and workspaces of the libraries
    gradients = workload.embeddings.nbytes + workload.proxies.nbytes
    before = resident("VmRSS")
    peaks = []
    for _ in range(3):  # the first step also loads code; memory that it keeps counts in all
        workload.embeddings.grad = workload.proxies.grad = None
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        step()
        peaks.append(resident("VmHWM"))
    mb = 1 / 2**20
    return {
        "process_mb": max(peaks) * mb,
        "inputs_and_gradients_mb": 2 * gradients * mb,
        "beyond_mb": (min(peaks) - before - gradients) * mb,
    }


if __name__ == "__main__":
    name, *sizes = sys.argv[1:]
    torch.set_num_threads(2)
    print(json.dumps(peak(name, Shape(*map(int, sizes)))))
