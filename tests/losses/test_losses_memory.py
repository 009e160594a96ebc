"""What a step takes beyond its inputs and gradients, whatever the number of classes."""

import json
import subprocess
import sys

import pytest

SHAPE = (256, 150_000, 64)  # S would be 154 MB


@pytest.mark.parametrize(
    "contender",
    ["proxy-anchor", "adaptive", "smooth factored", "proxy-anchor none", "class-lse", "class-lse soft-triple"],
)
def test_peak_memory(contender):
    command = [sys.executable, "-m", "bench.memory", f"robustdml/{contender}", *map(str, SHAPE)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)["beyond_mb"] <= 32
