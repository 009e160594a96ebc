"""One step at rest and beside a busy process, on two processors: ``python -m bench.crowd CONTENDER B C D``.

Prints the medians as JSON. Three threads share two processors, so the least to expect is 1.5 times the time at rest.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

PROCESSORS, ROUNDS = 2, 15
BUSY = "while True: pass"


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Another process that keeps one of this process's processors busy."""
    neighbour = subprocess.Popen([sys.executable, "-c", BUSY])
    time.sleep(0.5)
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def median_seconds(step: Callable[[], object]) -> float:
    """Median of ROUNDS steps after two of warm-up."""
    seconds = []
    for _ in range(ROUNDS + 2):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def main() -> None:
    """Time one contender."""
    contender, *shape = sys.argv[1:]
    allowed = sorted(os.sched_getaffinity(0))[:PROCESSORS]
    os.sched_setaffinity(0, allowed)
    import torch  # after the processors are chosen: its threads are as many

    from .workloads import Shape, Workload

    torch.set_num_threads(len(allowed))
    step = Workload(Shape(*map(int, shape))).contender(contender)
    at_rest = median_seconds(step)
    with busy_process():
        in_a_crowd = median_seconds(step)
    print(json.dumps({"rest_s": at_rest, "crowd_s": in_a_crowd, "times": in_a_crowd / at_rest}))


if __name__ == "__main__":
    main()
