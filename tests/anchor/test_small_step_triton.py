"""The small step in one launch against eager: on the GPU, or in Triton's interpreter on the CPU."""

import dataclasses

import pytest
import torch

from robustdml_ops.backends import cards
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.ops.anchor import sweep as anchor_sweeps
from robustdml_ops.ops.anchor.problem import SweepResult, Wanted
from robustdml_ops.ops.anchor.sweep import BACKENDS
from tests.anchor.cases import EAGER, EDGES, Case, assert_sweeps_agree
from tests.nightly import nightly_but
from tests.triton_here import DEVICE, MARKS, ON_GPU

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice):RuntimeWarning")]  # of NaN
TRITON = BACKENDS["triton"]
GRADIENTS = Wanted(embeddings=True, proxies=True)
FOUND = ("total", "dembeddings", "dproxies")
# Parts of tiles and whole ones, several for a program; one proxy and one sample; the largest batch that is taken.
SHAPES = [(5, 7, 3), (33, 65, 40), (1, 1, 1), (130, 300, 17), (256, 200, 128), (70, 200, 64)]


@pytest.fixture(autouse=True)
def taken(monkeypatch, exact_products):
    """The table has it so, float32 may be rounded to TF32, two programs share the proxies. The steps that were taken.

    The CPU, where the interpreter runs, still multiplies all digits.
    """
    put(monkeypatch, "fused")
    torch.set_float32_matmul_precision("high")
    steps, step = [], anchor_sweeps.small_step
    monkeypatch.setattr(anchor_sweeps, "small_step", lambda *given: steps.append(given) or step(*given))
    return steps


def put(monkeypatch, small_step, programs=2):
    row = cards.card(DEVICE)
    tiles = {**row.tiles, "anchor_step": {**row.tiles["anchor_step"], "programs": programs}}
    row = dataclasses.replace(row, small_step=small_step, tiles=tiles)
    monkeypatch.setitem(cards.CARDS, cards.architecture(DEVICE), row)


def assert_step_as_exact_as_eager(case, taken, operand=torch.float32) -> SweepResult:
    exact = case.exact(operand, GRADIENTS)
    ours, eager = (case.sweep(backend, operand=operand, want=GRADIENTS) for backend in (TRITON, EAGER))
    assert_sweeps_agree(ours, eager, exact)
    assert len(taken) == 1
    return ours


@pytest.mark.parametrize("operand", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [False, True], ids=["by rows", "by columns"])
@pytest.mark.parametrize("shape", nightly_but([(5, 7, 3), (33, 65, 40)], SHAPES))
def test_as_exact_as_eager(shape, columns, operand, taken):
    case = Case(shape, "labels", anchor_bias=shape[0] % 2 == 1)
    if columns:
        case.embeddings, case.proxies = (x.t().contiguous().t() for x in (case.embeddings, case.proxies))
    ours = assert_step_as_exact_as_eager(case, taken, operand)
    assert ours.dproxies.dtype == operand
    assert ours.dproxies.stride() == case.proxies.stride()
    assert ours.lse_positive is None


@pytest.mark.parametrize("programs", [1, 3, 128])
def test_any_number_of_programs(programs, monkeypatch, taken):
    put(monkeypatch, "fused", programs)
    assert_step_as_exact_as_eager(Case((33, 300, 24), "labels"), taken)


@pytest.mark.parametrize("edge", EDGES)
def test_edges(edge, taken):
    assert_step_as_exact_as_eager(EDGES[edge](), taken)


def test_proxies_that_are_part_of_a_wider_matrix(taken):
    case = Case((33, 70, 24), "labels")
    wide = torch.nn.functional.pad(case.proxies.float(), (1, 2)).to(DEVICE)
    whole = case.sweep(TRITON, want=GRADIENTS)
    case.proxies = wide[:, 1:25]
    part = case.sweep(TRITON, want=GRADIENTS)
    assert len(taken) == 2
    for field in FOUND:
        assert torch.equal(getattr(part, field), getattr(whole, field)), field


@ON_GPU
def test_same_bits_twice(taken):
    case = Case((130, 300, 17), "labels")
    first, second = (case.sweep(TRITON, want=GRADIENTS) for _ in range(2))
    for field in FOUND:
        assert torch.equal(getattr(second, field), getattr(first, field)), field
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("shape", "sets", "operand", "want"),
    [
        ((257, 5, 8), "labels", torch.float32, GRADIENTS),
        ((5, 7, 129), "labels", torch.float32, GRADIENTS),
        ((5, 7, 8), "labels", torch.float64, GRADIENTS),
        ((5, 7, 8), "confidences by sample", torch.float32, GRADIENTS),
        ((5, 7, 8), "logits", torch.float32, GRADIENTS),
        ((5, 7, 8), "labels", torch.float32, Wanted(embeddings=True)),
        ((5, 7, 8), "labels", torch.float32, Wanted(proxies=True)),
        ((5, 7, 8), "labels", torch.float32, Wanted(lse=True, embeddings=True, proxies=True)),
        ((5, 7, 8), "labels", torch.float32, Wanted(embeddings=True, proxies=True, biases=True)),
    ],
)
def test_chunks_take_what_it_leaves(shape, sets, operand, want, taken):
    case = Case(shape, sets)
    compute = torch.promote_types(operand, torch.float32)
    exact = case.exact()
    ours = case.sweep(TRITON, dtype=compute, want=want)
    assert taken == []
    torch.testing.assert_close(ours.total.cpu(), exact.total, rtol=1e-3, atol=1e-3)


def test_chunks_take_exact_products_and_what_the_table_gives_them(monkeypatch, taken):
    case = Case((5, 7, 8), "labels")
    torch.set_float32_matmul_precision("highest")
    case.sweep(TRITON, want=GRADIENTS)
    torch.set_float32_matmul_precision("high")
    put(monkeypatch, "chunk")
    case.sweep(TRITON, want=GRADIENTS)
    assert taken == []


def test_a_loss_takes_it_and_has_the_gradients_of_eager(taken):
    torch.manual_seed(0)
    X, y = torch.randn(33, 24, device=DEVICE), torch.randint(70, (33,), device=DEVICE)
    loss, gradients = ProxyAnchorLoss(70, 24, backend="triton").to(DEVICE), {}
    for backend in ("triton", "eager"):
        loss.backend, leaf = backend, X.clone().requires_grad_()
        loss.zero_grad()
        value = loss(leaf, y)
        (3 * value).backward()
        gradients[backend] = value.detach(), leaf.grad, loss.proxies.grad
    assert len(taken) == 1
    torch.testing.assert_close(*gradients.values(), rtol=1e-4, atol=1e-6 if DEVICE.type == "cpu" else 1e-2)
