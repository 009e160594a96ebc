"""Small steps, where the layers between a loss and its kernel weigh most: a loss of each kind and all of its rivals."""

import pytest

from .device import DEVICE
from .families import FAMILIES, PLAIN, assert_same
from .pair_workloads import workload_of
from .shapes import Shape

SMALL = Shape(128, 200, 64)


@pytest.mark.parametrize("contender", [each for kind in PLAIN for each in FAMILIES[kind].contenders(kind)])
def test_step(timed, contender):
    """The floor: the bare products of these shapes; values are compared with the reference by the larger rows."""
    who, _, kind = contender.partition("/")
    workload = workload_of(kind, SMALL, device=DEVICE)
    step = workload.contender(contender)
    if who != "robustdml":
        assert_same(step(), workload.contender(f"robustdml/{kind}")())
    products = () if FAMILIES[kind].classes else (0, 3) if kind == "info-nce" else (3, 0)
    group = f"{'pairs, ' if products else ''}{kind}, {workload.shape}"
    timed(
        step, workload.products(*products), group=group, contender=contender, rounds=400 if who == "robustdml" else 100
    )
