"""Instructions that a compiled Triton kernel runs for each element, counted in SASS, the machine's own code."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.ahead_of_time import CUOBJDUMP

NVDISASM = CUOBJDUMP.with_name("nvdisasm")


def loops(compiled, folder: Path) -> list[list[str]]:
    """The instructions of each innermost loop, in the order of the code."""
    if not NVDISASM.exists():
        pytest.skip("nvdisasm is not installed: this Triton does not bring it")
    cubin = folder / "counted.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    listing = subprocess.run([str(NVDISASM), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    instructions, labels, found = [], {}, []
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L\w+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;", line):
            instructions.append(instruction[1])
            target = re.search(r"\bBRA\b.*\((\.L\w+)\)", instruction[1])
            first = labels.get(target[1]) if target else None
            if first is not None and first < len(instructions) - 1:  # one that leaps to itself ends the code
                found.append((first, len(instructions)))
    # Leaps back to what was moved out of the way look like loops around others.
    inner = [loop for loop in found if not any(loop != other and loop[0] <= other[0] < loop[1] for other in found)]
    return [instructions[first:end] for first, end in sorted(inner)]
