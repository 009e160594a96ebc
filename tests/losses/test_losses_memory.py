"""What a step takes beyond its inputs and gradients, whatever the number of classes."""

import json
import subprocess
import sys

import pytest

from tests.nightly import nightly_but

# In MB: what README claims of them, rounded up to what an allocation of a thread adds.
CLAIMED = {
    "proxy-anchor": 9,
    "proxy-anchor none": 11,
    "adaptive": 9,
    "smooth factored": 8,
    "class-lse": 8,
    "class-lse soft-triple": 8,
}


@pytest.mark.parametrize("contender", nightly_but(["proxy-anchor"], CLAIMED))
def test_peak_memory(contender):
    command = [sys.executable, "-m", "bench.memory", f"robustdml/{contender}", "256", "100000", "128"]  # S: 102 MB
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)["beyond_mb"] <= CLAIMED[contender]


def test_two_towers_have_no_copy_of_their_rows():
    """A copy of 8 MB for each block of a thread, and one of unit rows, would be 144 MB."""
    command = [sys.executable, "-m", "bench.pair_workloads", "robustdml/sigmoid of two towers", "4096", "512", "4096"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)["beyond_mb"] <= 24
