"""Steps beside a busy process: how much slower than at rest, ours and the peers'."""

import os

import pytest

from .workloads import Shape

LARGE = Shape(256, 100_000, 128)
CONTENDERS = ("robustdml/proxy-anchor", "pml/proxy-anchor", "robustdml/proxy-nca", "pml/proxy-nca")
CONTENDERS += ("robustdml/similarity", "robustdml/nearest")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes to processors")
@pytest.mark.parametrize("contender", CONTENDERS)
def test_beside_a_busy_process(in_own_process, contender):
    sizes = (LARGE.B, LARGE.C, LARGE.D)
    in_own_process("crowd", contender, *sizes, group=f"in a crowd, {LARGE}", contender=contender)
