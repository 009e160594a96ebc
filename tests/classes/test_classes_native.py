"""The native class log-sum-exp, on the CPU and in CUDA, which is emulated where there is no GPU, against eager."""

import pytest
import torch

from robustdml_ops.ops.classes.backends import BACKENDS
from tests.classes.cases import EDGES, POOLINGS, Case
from tests.nightly import nightly_but

NATIVE = BACKENDS["native"]
# A single class or sample, sizes around the blocks of the CPU (32 × 128) and of the kernels (8 × 32).
SHAPES = [(1, 1, 1), (31, 3, 3), (33, 33, 5), (129, 70, 4), (300, 9, 4), (5, 300, 4)]


@pytest.mark.parametrize(("pooling", "H"), POOLINGS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, torch.float32) for shape in SHAPES), *((shape, torch.float64) for shape in SHAPES[1::2])],
)
def test_against_eager(device, dtype, shape, pooling, H):
    Case(shape, pooling, H).check(NATIVE, device, dtype)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", nightly_but([torch.float32], [torch.float32, torch.float64]))
@pytest.mark.parametrize("edge", EDGES)
def test_edges(device, edge, dtype):
    EDGES[edge]().check(NATIVE, device, dtype)


@pytest.mark.parametrize(("pooling", "H"), POOLINGS)
def test_same_bits_twice(device, pooling, H, threads, monkeypatch):
    """With several threads, and with those of a block in another order."""
    threads(3)
    case = Case((129, 111, 4), pooling, H)
    first = case.run(NATIVE, device)
    monkeypatch.setenv("ROBUSTDML_EMULATION_REVERSE", "1")
    second = case.run(NATIVE, device)
    assert all(torch.equal(first[name], second[name]) for name in first)
