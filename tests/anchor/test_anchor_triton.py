"""Triton's backends against the eager ones: on the GPU, or in Triton's interpreter on the CPU."""

import pytest
import torch

from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.anchor.backends import AnchorOptions, AnchorProblem, AnchorSums
from robustdml_ops.ops.anchor.sweep import BACKENDS, Wanted
from tests.anchor.cases import EAGER, EDGES, SETS, Case, assert_sweeps_agree
from tests.nightly import nightly_but
from tests.triton_here import DEVICE, MARKS, ON_GPU

TRITON = BACKENDS["triton"]

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice):RuntimeWarning")]  # of NaN
# The interpreter's products of bfloat16 and float16 are not the device's.
OPERANDS = [torch.float32, torch.bfloat16, torch.float16] if DEVICE.type == "cuda" else [torch.float32]
SHAPES = [(33, 65, 40), (5, 7, 3), (1, 1, 1), (130, 70, 17), (300, 9, 24)]


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("shape", nightly_but([(33, 65, 40), (5, 7, 3)], SHAPES))
def test_sweep_as_exact_as_eager(shape, sets, operand):
    case = Case(shape, sets)
    exact = case.exact(operand)
    assert_sweeps_agree(case.sweep(TRITON, operand=operand), case.sweep(EAGER, operand=operand), exact)


@pytest.mark.parametrize("sets", SETS[::-1])
def test_float64(sets):
    case = Case((33, 65, 40), sets)
    ours = case.sweep(TRITON, dtype=torch.float64)
    for field, value in vars(case.exact()).items():
        torch.testing.assert_close(getattr(ours, field).cpu(), value, rtol=1e-11, atol=1e-11, msg=field)


@pytest.mark.parametrize("edge", EDGES)
def test_edges_of_the_sweep(edge):
    case = EDGES[edge]()
    assert_sweeps_agree(case.sweep(TRITON), case.sweep(EAGER), case.exact())


def test_a_row_whose_sum_overflows_leaves_its_neighbours_as_they_are():
    case = Case((130, 12, 17), "labels")
    case.anchor_bias.zero_()
    alone = case.sweep(TRITON)
    case.anchor_bias[[3, 8]] = 300.0
    ours, exact = case.sweep(TRITON), case.exact()
    others = [row for row in range(12) if row not in (3, 8)]
    for field in ("lse_positive", "lse_negative", "dproxies"):
        assert torch.equal(getattr(ours, field)[others], getattr(alone, field)[others]), field
        torch.testing.assert_close(getattr(ours, field).cpu().double(), getattr(exact, field), rtol=1e-4, atol=1e-4)
    assert ours.lse_negative[[3, 8]].min() > 250


@ON_GPU
def test_same_bits_twice():
    case = Case((130, 70, 17), "confidences by sample")
    first, second = case.sweep(TRITON), case.sweep(TRITON)
    for field, value in vars(first).items():
        assert torch.equal(getattr(second, field), value), field


@pytest.mark.parametrize("sets", ["labels", "confidences by sample", "logits"])
def test_sweep_without_gradients(sets):
    case = Case((33, 20, 12), sets)
    ours, eager = (case.sweep(backend, want=Wanted(lse=True)) for backend in (TRITON, EAGER))
    torch.testing.assert_close(ours.total, eager.total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.lse_negative, eager.lse_negative, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs 20 GB of a GPU: addresses beyond 2³¹ elements")
def test_more_than_two_to_the_31_elements():
    c, B = 70_000, 32_768
    S = torch.linspace(-1, 1, c, device=DEVICE)[:, None] * torch.linspace(0, 1, B, device=DEVICE)
    last = S[-8:].clone()
    zeros, upstream = torch.zeros(B, device=DEVICE), torch.ones((), device=DEVICE)
    problem = AnchorProblem(AnchorOptions(32.0, LabelSets.of(torch.arange(B, device=DEVICE))), zeros, zeros, None)
    results = []
    for backend, cosines in ((TRITON, S), (EAGER, last)):
        lse = cosines.new_empty((2, len(cosines)))
        chunk = Chunk(c - len(cosines), c, cosines, cosines, cosines, short=False, scale=None)
        backend.anchor_lse(chunk, AnchorSums((upstream, upstream), *lse, None, None), problem)
        results.append(lse[1, -8:])
    torch.testing.assert_close(*results)
    torch.testing.assert_close(S[-8:], last)
