"""Small steps, where the layers between a loss and its kernel weigh most: a loss of each kind and all of its rivals."""

import pytest

from .families import FAMILIES, PLAIN, assert_same
from .pair_workloads import PairShape, PairWorkload
from .workloads import Shape, Workload

PROXIES, PAIRS, TOWERS = Shape(128, 200, 64), PairShape(128, 64), PairShape(128, 64, 128)


def workload_of(kind: str) -> Workload | PairWorkload:
    if FAMILIES[kind].classes:
        return Workload(PROXIES)
    return PairWorkload(TOWERS if kind == "info-nce" else PAIRS)


@pytest.mark.parametrize("contender", [each for kind in PLAIN for each in FAMILIES[kind].contenders(kind)])
def test_step(timed, contender):
    """The floor: the bare products of these shapes; values are compared with the reference by the larger rows."""
    who, _, kind = contender.partition("/")
    workload = workload_of(kind)
    step = workload.contender(contender)
    if who != "robustdml":
        assert_same(step(), workload.contender(f"robustdml/{kind}")())
    products = () if FAMILIES[kind].classes else (0, 3) if kind == "info-nce" else (3, 0)
    group = f"{'pairs, ' if products else ''}{kind}, {workload.shape}"
    timed(step, workload.products(*products), group=group, contender=contender, rounds=400)
