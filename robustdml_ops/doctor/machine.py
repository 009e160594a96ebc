"""Pools of threads, and whether the machine is busy with other work."""

import re
import time
from pathlib import Path

from robustdml_ops.doctor.finding import Finding

_POOLS = re.compile(r"/(lib(?:gomp|iomp5|omp)[^/]*\.so[^/]*)$")
_MAPS = Path("/proc/self/maps")
_STAT = Path("/proc/stat")


def pools(maps: Path = _MAPS) -> Finding:
    """OpenMP libraries in this process: with two, two pools of threads share the processors."""
    try:
        lines = maps.read_text(errors="replace").splitlines()
    except OSError:
        return Finding("OpenMP", "can't be told on this system")
    # A library that was replaced since it was loaded is marked; names may have blanks.
    mapped = [line.split(maxsplit=5)[5].removesuffix(" (deleted)") for line in lines if line.count("/")]
    files = sorted({path for path in mapped if _POOLS.search(path)})
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
    try:
        before = _ticks(stat)
        time.sleep(seconds)
        idle, total = (after - at_first for after, at_first in zip(_ticks(stat), before, strict=True))
    except (OSError, ValueError, IndexError):
        return Finding("other work", "can't be told on this system")
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
