"""Peak memory of a step of a network and SupCon on the CPU: ``python -m bench.micro_batches B MICRO`` prints JSON.

MB beyond parameters, their gradients and the inputs, and the activations of a micro-batch by count; MICRO = B is the
plain step. glibc gives freed memory back at once only with MALLOC_MMAP_THRESHOLD_=65536 and MALLOC_TRIM_THRESHOLD_=0.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from robustdml_ops import backward_in_micro_batches
from robustdml_ops.losses import SupConLoss

from .memory import resident

WIDTH, LAYERS, D = 1024, 12, 128


def memory(B: int, micro: int) -> dict[str, float]:
    """The peak of three steps."""
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    network, loss_function = nn.Sequential(*layers, nn.Linear(WIDTH, D)), SupConLoss()
    X, labels = torch.randn(B, WIDTH), torch.arange(B) // 4

    def step(count: int, rows: int) -> None:
        if rows == count:
            loss_function(network(X[:count]), labels[:count]).backward()
        else:
            given = (network, X[:count])
            backward_in_micro_batches(lambda found: loss_function(found, labels[:count]), given, micro_batch=rows)

    step(32, 32)
    step(32, 16)  # thread pools and gradients
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for _ in range(3):
        step(B, micro)
    return {"beyond_mb": (resident("VmHWM") - before) / 2**20, "activations_mb": micro * LAYERS * WIDTH / 2**18}


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(json.dumps(memory(*map(int, sys.argv[1:]))))
