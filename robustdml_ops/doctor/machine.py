"""Threads, pools of threads, and whether the machine is busy with other work."""

import os
import re
import time
from pathlib import Path

import torch

from robustdml_ops.doctor.finding import Finding

_POOLS = re.compile(r"/(lib(?:gomp|iomp5|omp)[^/]*\.so[^/]*)$")
_MAPS = Path("/proc/self/maps")
_STAT = Path("/proc/stat")


def threads() -> Finding:
    """PyTorch's threads against the processors that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    number = torch.get_num_threads()
    facts = {"threads": number, "processors": allowed}
    told = f"{number} threads on {allowed} processors"
    if number > allowed:
        return Finding(
            "threads", told, f"set OMP_NUM_THREADS={allowed}: more threads than processors wait for each other", facts
        )
    return Finding("threads", told, facts=facts)


def pools(maps: Path = _MAPS) -> Finding:
    """OpenMP libraries in this process: with two, two pools of threads share the processors."""
    if not maps.exists():
        return Finding("OpenMP", "can't be told on this system")
    lines = maps.read_text().splitlines()
    files = sorted({line.split()[-1] for line in lines if _POOLS.search(line)})
    names = [Path(file).name for file in files]
    facts = {"libraries": files}
    if len(files) > 1:
        way_out = (
            "two pools of threads share the processors: let PyTorch alone bring one, which the native module shares; "
            "often another package was installed by another channel than PyTorch"
        )
        return Finding("OpenMP", ", ".join(names), way_out, facts)
    return Finding("OpenMP", ", ".join(names) or "none", facts=facts)


def busy(seconds: float = 0.25, stat: Path = _STAT) -> Finding:
    """How much of the machine others are using, over a moment in which this process sleeps."""
    if not stat.exists():
        return Finding("other work", "can't be told on this system")
    before = _ticks(stat)
    time.sleep(seconds)
    idle, total = (after - at_first for after, at_first in zip(_ticks(stat), before, strict=True))
    share = 1 - idle / max(1, total)
    facts = {"busy": round(share, 3)}
    told = f"{share:.0%} of the machine is busy"
    if share > 0.25:
        return Finding(
            "other work", told, "time nothing now; for training set OMP_WAIT_POLICY=passive before Python starts", facts
        )
    return Finding("other work", told, facts=facts)


def _ticks(stat: Path) -> tuple[int, int]:
    """Idle and all ticks of all processors."""
    numbers = [int(number) for number in stat.read_text().splitlines()[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)
