"""Threads against the processors that this process may use."""

import os
import re
from pathlib import Path

import torch

from robustdml_ops.doctor.finding import Finding

# What control groups, as of containers and Slurm, let a process have of the processors that it sees.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# A list of numbers, one for each level of nested regions.
_NUMBERS = re.compile(r"\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*")


def threads(quota: Path = _QUOTA) -> Finding:
    """PyTorch's threads, what the environment says of them, and how many processors there are for them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share, asked = _share(quota), os.environ.get("OMP_NUM_THREADS")
    usable = allowed if share is None else max(1, min(allowed, round(share)))
    number = torch.get_num_threads()
    facts = {"threads": number, "processors": allowed, "quota": share, "OMP_NUM_THREADS": asked}
    told = f"{number} threads on {allowed} processors" + ("" if share is None else f", of which it may use {share:g}")
    if asked is not None and not _NUMBERS.fullmatch(asked):
        way_out = (
            f"OMP_NUM_THREADS={asked!r} is no number from 1 on, and is passed over: set it to {usable}, or unset it"
        )
        return Finding("threads", told, way_out, facts)
    if number > usable:
        way_out = f"set OMP_NUM_THREADS={usable}: more threads than processors wait for each other"
        return Finding("threads", told, way_out, facts)
    return Finding("threads", told, facts=facts)


def _share(quota: Path) -> float | None:
    """Processors' worth of time, or None where there is no limit."""
    try:
        most, period = quota.read_text().split()
        return None if most == "max" else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
