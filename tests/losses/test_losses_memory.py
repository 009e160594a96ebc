"""What a step takes beyond its inputs and gradients, whatever the number of classes."""

import json

import pytest

from tests.nightly import nightly_but
from tests.subprocesses import run_python

# In MB: what README claims of them, rounded up to what an allocation of a thread adds.
CLAIMED = {
    "proxy-anchor": 9,
    "proxy-anchor none": 11,
    "adaptive": 9,
    "smooth factored": 8,
    "proxy-nca": 106,  # with the terms that it saves, 98 MB
    "soft-triple": 106,
}
# A step that saves no terms.
LEAST = "import sys; sys.argv[1:] = {!r}; from robustdml_ops.ops import limit_saved_bytes; limit_saved_bytes(0); "
LEAST += "import runpy; runpy.run_module('bench.memory', run_name='__main__')"


def megabytes(module, contender, *sizes):
    run = run_python("-m", module, f"robustdml/{contender}", *sizes)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)["beyond_mb"]


@pytest.mark.parametrize("contender", nightly_but(["proxy-anchor"], CLAIMED))
def test_peak_memory(contender):
    assert megabytes("bench.memory", contender, "256", "100000", "128") <= CLAIMED[contender]  # S: 102 MB


@pytest.mark.parametrize("contender", nightly_but(["proxy-nca"], ["proxy-nca", "soft-triple"]))
def test_least_memory_of_a_softmax(contender):
    run = run_python("-c", LEAST.format([f"robustdml/{contender}", "256", "100000", "128"]))
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["beyond_mb"] <= 8


def test_two_towers_have_no_copy_of_their_rows():
    """A copy of 8 MB for each block of a thread, and one of unit rows, would be 144 MB."""
    assert megabytes("bench.pair_workloads", "sigmoid", "4096", "512", "4096") <= 24
