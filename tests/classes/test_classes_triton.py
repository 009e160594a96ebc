"""The class log-sum-exp in Triton against eager: on the GPU, or in Triton's interpreter on the CPU."""

import pytest
import torch

from robustdml_ops.engine.labels import ABSENT, ELSEWHERE, LabelSets
from robustdml_ops.ops import class_lse
from robustdml_ops.ops.classes import backends as triton_classes
from robustdml_ops.ops.classes.backends import BACKENDS, slices_of
from robustdml_ops.ops.classes.sweep import ClassProblem
from tests.classes.cases import EAGER, EDGES, POOLINGS, Case
from tests.classes.seen import SEEN, check_seen
from tests.nightly import nightly_but
from tests.triton_here import DEVICE, MARKS, ON_GPU

TRITON = BACKENDS["triton"]

pytestmark = MARKS
# The interpreter's products of bfloat16 are not the device's.
OPERANDS = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
SHAPES = [(33, 65, 40), (5, 7, 3), (1, 1, 1), (150, 9, 17), (20, 70, 200)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize(("pooling", "H"), POOLINGS)
@pytest.mark.parametrize("shape", nightly_but(SHAPES[:2], SHAPES))
def test_as_exact_as_eager(shape, pooling, H, operand, fused, monkeypatch):
    monkeypatch.setattr(triton_classes, "LONGEST_ROW", 800)  # those of the last shape go through the kernel in steps
    Case(shape, pooling, H).check(TRITON, operand=operand, fused=fused)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("shape", nightly_but(SHAPES[:2], SHAPES))
def test_saved_terms_are_as_exact_as_eager(shape, exclude):
    Case(shape, scale=None, bias=False, exclude=exclude).check(TRITON, saves=True)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("pooling", "H"), POOLINGS[::-1])
def test_float64_over_many_chunks(pooling, H):
    case = Case((9, 16, 5), pooling, H)
    ours, exact = case.run(TRITON, dtype=torch.float64), case.run(EAGER, dtype=torch.float64)
    for name, value in exact.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-11, atol=1e-11, msg=name)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, on NaN
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("fused", [True, False])
def test_edges(edge, fused):
    EDGES[edge]().check(TRITON, fused=fused)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, on classes beyond the last
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", nightly_but(list(SEEN)[:4], SEEN))
def test_what_is_seen(name, fused):
    check_seen(name, "triton", torch.float32, fused, DEVICE)


@ON_GPU
@pytest.mark.parametrize("fused", [False, True])
def test_same_bits_twice(fused):
    case = Case((40, 150, 9), "softmax", 2)
    first, second = (case.run(TRITON, fused=fused) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("fused", [True, False])
def test_parts_of_several_blocks(fused, monkeypatch):
    monkeypatch.setattr(triton_classes, "slices_of", lambda classes, block, most: slices_of(classes, block, 2))
    Case((5, 300, 8), bias=False).check(TRITON, fused=fused)


@pytest.mark.parametrize(
    ("compute", "operand", "D", "serves"),
    [
        (torch.float32, torch.float32, 128, True),
        (torch.float32, torch.float32, 129, False),
        (torch.float32, torch.bfloat16, 256, True),
        (torch.float32, torch.bfloat16, 512, False),
        (torch.float64, torch.float64, 8, False),
    ],
)
def test_the_fused_forward_leaves_float64_and_long_rows_to_the_sweep(compute, operand, D, serves):
    case = Case((5, 30, 8), bias=False)
    problem = ClassProblem(LabelSets.of(case.labels), case.scale.to(compute), bias=None, **case.settings)
    assert triton_classes.fused_forward_serves(torch.empty(5, D, dtype=operand), problem) is serves


@pytest.mark.parametrize("label", [ABSENT, ELSEWHERE, 2**32, -(2**32), 2**63 - 1])
def test_a_label_of_no_class_is_not_taken_for_another(label):
    """Neither the low bits of a label nor an overflow of its distance from the first class make it one."""
    torch.manual_seed(0)
    X, P, y = torch.randn(4, 16, device=DEVICE), torch.randn(6, 16, device=DEVICE), torch.arange(4, device=DEVICE)
    y[0] = label
    found = []
    for backend in ("triton", "eager"):
        leaf = X.clone().requires_grad_()
        sums = class_lse(leaf, P, y, scale=4.0, elsewhere=True, backend=backend)
        sums.lse.sum().backward()
        with torch.no_grad():
            fused = class_lse(X, P, y, scale=4.0, elsewhere=True, backend=backend)
        found.append([sums.lse.detach(), fused.lse, sums.target.detach(), leaf.grad])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
