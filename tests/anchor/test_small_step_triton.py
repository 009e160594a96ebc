"""The small step in one launch against eager: on the GPU, or in Triton's interpreter on the CPU."""

import dataclasses

import pytest
import torch

from robustdml_ops.backends import cards
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.ops.anchor import sweep as anchor_sweeps
from robustdml_ops.ops.anchor.problem import SweepResult, Wanted
from robustdml_ops.ops.anchor.sweep import BACKENDS
from tests.anchor.cases import EAGER, Case, assert_as_exact_as_eager
from tests.nightly import nightly_but
from tests.triton_here import DEVICE, MARKS

pytestmark = MARKS
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


def assert_step_as_exact_as_eager(case, operand=torch.float32) -> SweepResult:
    exact = case.exact(operand)
    ours, eager = (case.sweep(backend, operand=operand, want=GRADIENTS) for backend in (TRITON, EAGER))
    for field in FOUND:
        assert_as_exact_as_eager(getattr(ours, field), getattr(eager, field), getattr(exact, field), field)
    return ours


@pytest.mark.parametrize("operand", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [False, True], ids=["by rows", "by columns"])
@pytest.mark.parametrize("shape", nightly_but([(5, 7, 3), (33, 65, 40)], SHAPES))
def test_as_exact_as_eager(shape, columns, operand, taken):
    case = Case(shape, "labels", anchor_bias=shape[0] % 2 == 1)
    if columns:
        case.embeddings, case.proxies = (x.t().contiguous().t() for x in (case.embeddings, case.proxies))
    ours = assert_step_as_exact_as_eager(case, operand)
    assert len(taken) == 1
    assert ours.dproxies.dtype == operand
    assert ours.dproxies.stride() == case.proxies.stride()
    assert ours.lse_positive is None


@pytest.mark.parametrize("programs", [1, 3, 128])
def test_any_number_of_programs(programs, monkeypatch, taken):
    put(monkeypatch, "fused", programs)
    assert_step_as_exact_as_eager(Case((33, 300, 24), "labels"))
    assert len(taken) == 1


def test_proxies_that_are_part_of_a_wider_matrix(taken):
    case = Case((33, 70, 24), "labels")
    wide = torch.nn.functional.pad(case.proxies.float(), (1, 2)).to(DEVICE)
    whole = case.sweep(TRITON, want=GRADIENTS)
    case.proxies = wide[:, 1:25]
    part = case.sweep(TRITON, want=GRADIENTS)
    assert len(taken) == 2
    for field in FOUND:
        assert torch.equal(getattr(part, field), getattr(whole, field)), field


@pytest.mark.parametrize("shared", [(True, True), (True, False), (False, True)])
def test_one_upstream_value_for_all_anchors(shared, taken):
    case = Case((33, 65, 8), "labels", anchor_bias=False)
    case.upstream = tuple(part[0] if one else part for one, part in zip(shared, case.upstream, strict=True))
    assert_step_as_exact_as_eager(case)
    assert len(taken) == 1


def test_one_bias_for_both_sides(taken):
    case = Case((33, 65, 8), "labels", anchor_bias=False)
    case.negative_bias = case.positive_bias
    assert_step_as_exact_as_eager(case)
    assert len(taken) == 1


def test_large_alpha_and_absent_candidates(taken):
    """Exponents of ±500, margins, and candidates of weight 0: all in a row, all of the batch's last block."""
    case = Case((130, 40, 17), "labels", alpha=500.0)
    case.positive_bias[::3] += 50
    case.positive_bias[1::3] = case.negative_bias[1::3] = -torch.inf
    case.positive_bias[64:] = case.negative_bias[64:] = -torch.inf
    assert_step_as_exact_as_eager(case)
    assert len(taken) == 1


def test_classes_without_samples_have_a_gradient_from_their_negatives_alone(taken):
    case = Case((33, 70, 8), "labels", anchor_bias=False)
    case.labels[:] = 69
    case.upstream = torch.ones(70, dtype=torch.float64), torch.zeros(70, dtype=torch.float64)
    ours = assert_step_as_exact_as_eager(case)
    assert ours.dproxies[:69].count_nonzero() == 0
    assert ours.dproxies[69].count_nonzero() > 0
    case.upstream = case.upstream[::-1]
    ours = assert_step_as_exact_as_eager(case)
    assert ours.dproxies[:69].count_nonzero() > 0
    assert ours.dproxies[69].count_nonzero() == 0
    assert len(taken) == 2


def test_zero_rows_have_cosine_zero_and_no_gradient(taken):
    case = Case((9, 70, 6), "labels")
    case.embeddings[2], case.proxies[[0, 69]] = 0, 0
    ours = assert_step_as_exact_as_eager(case)
    assert ours.dembeddings[2].count_nonzero() == 0
    assert ours.dproxies[[0, 69]].count_nonzero() == 0
    assert len(taken) == 1


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, on NaN
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_nan_stays_where_eager_has_it(taken):
    case = Case((9, 70, 6), "labels")
    case.proxies[3, 1] = torch.nan
    ours, eager = (case.sweep(backend, want=GRADIENTS) for backend in (TRITON, EAGER))
    for field in FOUND:
        assert torch.equal(getattr(ours, field).isnan(), getattr(eager, field).isnan()), field
    assert ours.dproxies.isnan().any(1).sum() == 1
    assert len(taken) == 1


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
    for ours, eager in zip(gradients["triton"], gradients["eager"], strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-6 if DEVICE.type == "cpu" else 1e-2)
