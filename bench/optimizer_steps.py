"""A whole training step of the proxies: loss, gradients and the optimiser's step, within the sweep or after it.

``python -m bench.optimizer_steps B C D [RULE [LOSS [SHARE]]]`` prints as JSON the memory of a step beyond proxies and
moments, the peak of all, from an empty process on, in bytes for each of the C·D elements, and the seconds of the first
step and of a later one.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW, ProxyOptimizer, ProxySGD

from .memory import resident
from .workloads import Shape, Workload

LOSSES = {"proxy-anchor": ProxyAnchorLoss, "normalized-softmax": NormalizedSoftmaxLoss}
RULES: dict[str, Callable[[ProxyAnchorLoss], ProxyOptimizer]] = {
    "adamw": lambda loss: ProxyAdamW(loss, lr=1e-2),
    "adamw bfloat16": lambda loss: ProxyAdamW(loss, lr=1e-2, moments=torch.bfloat16),
    "adamw of two bytes": lambda loss: ProxyAdamW(loss, lr=1e-2, moments=torch.bfloat16),
    "sgd": lambda loss: ProxySGD(loss, lr=1e-2, momentum=0.9),
    "adagrad": lambda loss: ProxyAdagrad(loss, lr=1e-2),
    "adagrad of two bytes": lambda loss: ProxyAdagrad(loss, lr=1e-2),
}


def step_of(name: str, workload: Workload, negative_share: float = 1.0) -> Callable[[], None]:
    """``within/<loss>/<rule>``, or ``after/<loss>/adamw``: backward, and then ``torch.optim.AdamW(fused=True)``."""
    when, kind, rule = name.split("/")
    dtype = torch.bfloat16 if rule.endswith("of two bytes") else torch.float32
    loss_function = LOSSES[kind](workload.shape.C, workload.shape.D, negative_share=negative_share, dtype=dtype)
    X, y = workload.embeddings, workload.labels
    optimizer: torch.optim.Optimizer
    if when == "within":
        optimizer = RULES[rule](loss_function)
    else:
        optimizer = torch.optim.AdamW(loss_function.parameters(), lr=1e-2, fused=True)

    def step() -> None:
        X.grad = None
        optimizer.zero_grad()
        loss_function(X, y).backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None]) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def memory(shape: Shape, rule: str = "adamw", kind: str = "proxy-anchor", share: str = "1") -> dict[str, float]:
    """Peak memory of a step within the sweep, and of all that comes before; seconds of the first and of a later one."""
    given = f"within/{kind}/{rule}"
    step_of(given, Workload(Shape(shape.B, 640, shape.D), "cpu"), float(share))()  # pools of the libraries
    workload = Workload(shape, "cpu")
    del workload.proxies  # the loss has its own
    empty, peaks, first = resident("VmRSS"), [], 0.0
    step: Callable[[], None] | None = None
    for _ in range(2):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = resident("VmRSS")
        if step is None:
            step = step_of(given, workload, float(share))
        else:
            first = seconds(step)
        peaks.append(resident("VmHWM"))
    assert step is not None
    return {
        "first_s": first,
        "later_s": statistics.median(seconds(step) for _ in range(3)),
        "process_mb": max(peaks) / 2**20,
        "inputs_and_gradients_mb": (before - empty) / 2**20,
        "beyond_mb": (peaks[1] - before) / 2**20,
        "bytes_an_element": (max(peaks) - empty) / (shape.C * shape.D),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", nargs=3, metavar=("B", "C", "D"))
    parser.add_argument("settings", nargs="*", metavar="RULE [LOSS [SHARE]]")
    given = parser.parse_args()
    torch.set_num_threads(2)
    print(json.dumps(memory(Shape(*map(int, given.shape)), *given.settings)))
