"""Steps beside a busy process: how much slower than at rest, ours and the peers'."""

import json
import os
import subprocess
import sys

import pytest

from .workloads import Shape

LARGE = Shape(256, 100_000, 128)
CONTENDERS = ("robustdml/proxy-anchor", "pml/proxy-anchor", "robustdml/class-lse", "pml/proxy-nca")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes to processors")
@pytest.mark.parametrize("contender", CONTENDERS)
def test_beside_a_busy_process(benchmark, contender):
    """In a process of its own; the time that is kept is that of the whole process and means nothing."""
    command = [sys.executable, "-m", f"{__package__}.crowd", contender, *map(str, (LARGE.B, LARGE.C, LARGE.D))]
    benchmark.group = f"in a crowd, {LARGE}"
    out = benchmark.pedantic(lambda: subprocess.run(command, capture_output=True, text=True, check=True), rounds=1)
    benchmark.extra_info.update(contender=contender, **json.loads(out.stdout))
