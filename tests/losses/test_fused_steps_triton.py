"""Planned steps that make product and exponentials in one kernel: values and gradients, and what they refuse."""

import dataclasses
from functools import partial

import pytest
import torch

from bench import rivals
from robustdml_ops import losses
from robustdml_ops.backends import cards, dispatch, self_check
from robustdml_ops.backends.triton_launch import launch_with_scratch
from robustdml_ops.engine import fused_plan, gpu_plan
from robustdml_ops.ops.anchor.gpu_plan import FusedAnchorPlan
from robustdml_ops.ops.classes import gpu_plan as class_gpu_plan
from tests.launches import everywhere
from tests.losses import near_cases
from tests.losses.bfloat16_products import bfloat16_products
from tests.triton_here import DEVICE, MARKS, ON_GPU

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice|divide):RuntimeWarning")]
pytestmark.append(pytest.mark.filterwarnings("ignore:.*an optimiser that rounds to the nearest:UserWarning"))
B, C, D = 48, 107, 24
F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
KINDS = {
    "Proxy-Anchor": losses.ProxyAnchorLoss,
    "Proxy-Anchor, a negative margin": partial(losses.ProxyAnchorLoss, alpha=16.0, margin=-0.5),
    "softmax": losses.NormalizedSoftmaxLoss,
    "Proxy-NCA, without the positive": partial(losses.ProxyNCALoss, include_positive=False),
    "ArcFace": partial(losses.ArcFaceLoss, scale=32.0),
}
FORMULAS = {"Proxy-Anchor": rivals.proxy_anchor, "softmax": rivals.normalized_softmax}


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """The setting of the card, room for terms, and in the interpreter small tiles, so that there are several."""
    row = cards.card(DEVICE)
    small = {"rows": 16, "columns": 32, "depth": 16, "programs": 3} if DEVICE.type == "cpu" else {}
    tiles = {**row.tiles, "fused_terms": {**row.tiles["fused_terms"], **small}}
    changed = dataclasses.replace(row, fused_steps=True, tiles=tiles)
    monkeypatch.setitem(cards.CARDS, cards.architecture(DEVICE), changed)
    monkeypatch.setattr(class_gpu_plan, "bytes_to_save", lambda _: 1 << 30)


@pytest.fixture
def float32_operands(monkeypatch):
    """A float32 operand shows more digits of the formulas than one of bfloat16."""
    monkeypatch.setattr(fused_plan, "OPERANDS", (F32,))


def inputs(kind, backend="triton", types=(F32, F32), weighted=False, shape=(B, C, D), near=None, device=DEVICE):
    """A loss, embeddings, ``near`` their proxies or one of no length, labels of which some repeat, and a mask."""
    torch.manual_seed(0)
    b, c, d = shape
    loss_function = KINDS[kind](c, d, backend=backend).to(device, types[1])
    (parameter,) = loss_function.parameters()
    rows = parameter.data if parameter.shape == (c, d) else parameter.data.t()
    X, y = torch.randn(b, d), torch.randint(c, (b,))
    y[5:9] = y[0]
    if near is None:  # plain PyTorch has no gradient there
        X[4], rows[3] = 0, 0
    else:
        X = (1 - near) * X + near * torch.nn.functional.normalize(rows[y].cpu().float()) * d**0.5
    mask = torch.rand(b) > 0.3
    return loss_function, X.to(device, types[0]).requires_grad_(), y.to(device), mask.to(device) if weighted else None


def step(loss_function, X, y, w, upstream=1.0):
    loss = loss_function(X, y, sample_weights=w)
    (parameter,) = loss_function.parameters()
    return [loss.detach(), *torch.autograd.grad(upstream * loss, (X, parameter))]


def is_fused(loss_function):
    (plan,) = loss_function._plans.known.values()
    return isinstance(plan, FusedAnchorPlan) or getattr(plan, "fused", False)


def errors(found, exact):
    return [float((one.cpu().double() - right).norm() / right.norm()) for one, right in zip(found, exact, strict=True)]


@pytest.mark.usefixtures("float32_operands")
@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradients(kind, weighted, chunks, monkeypatch):
    if chunks:
        monkeypatch.setattr(gpu_plan, "chunk_rows", lambda *_: 48)
    given = inputs(kind, weighted=weighted)
    found = step(*given, upstream=-0.3)
    assert is_fused(given[0])
    exact = step(*inputs(kind, "eager", (F64, F64), weighted, device="cpu"), upstream=-0.3)
    assert max(errors(found, exact)) < 1e-6


@pytest.mark.parametrize("near", [0.0, 0.95])
@pytest.mark.parametrize("types", [(BF16, BF16), (BF16, F32)], ids=["bfloat16", "amp"])
@pytest.mark.parametrize("kind", FORMULAS)
def test_error_of_bfloat16_is_at_most_that_of_pytorch(kind, types, near):
    shape = (B, 112, 32)  # of W (D, C), too, rows are multiples of 16 bytes
    with bfloat16_products():
        given = inputs(kind, types=types, near=near, shape=shape)
        found = step(*given)
        assert is_fused(given[0])
    loss_function, X, y, _ = given
    (parameter,) = loss_function.parameters()
    exact, theirs = (of_formula(kind, X, parameter, y, dtype) for dtype in (F64, BF16))
    for ours, other, name in zip(errors(found, exact), errors(theirs, exact), ("loss", "dX", "dP"), strict=True):
        assert ours <= other, name


def of_formula(kind, X, parameter, y, dtype):
    """Plain PyTorch, on the CPU."""
    X, parameter = (each.detach().to("cpu", dtype).requires_grad_() for each in (X, parameter))
    P = parameter if parameter.shape[1] == X.shape[1] else parameter.t()
    loss = FORMULAS[kind](X, P, y.cpu())
    return [each.double() for each in (loss.detach(), *torch.autograd.grad(loss, (X, parameter)))]


@pytest.mark.skipif(DEVICE.type == "cuda", reason="cuBLAS multiplies there: see bench.gpu")
@pytest.mark.parametrize("noise", near_cases.NOISES)
@pytest.mark.parametrize("kind", ["Proxy-Anchor", "Proxy-NCA"])
def test_gradient_of_proxies_near_their_samples(kind, noise, monkeypatch):
    monkeypatch.setattr(near_cases, "C", 16)  # and twice as many samples
    launched = []

    def noted(launch, *values):
        launched.append(launch)
        launch_with_scratch(launch, *values)

    with bfloat16_products(), everywhere(launch_with_scratch=noted):
        near_cases.assert_as_exact_as_rounding(kind, near_cases.NOISES[noise], backend="triton")
    assert launched


@pytest.mark.usefixtures("float32_operands")
@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_one_gradient_alone(kind, wanted):
    both = step(*inputs(kind))
    loss_function, X, y, w = inputs(kind)
    (parameter,) = loss_function.parameters()
    X.requires_grad_(wanted[0]), parameter.requires_grad_(wanted[1])
    loss_function(X, y, sample_weights=w).backward()
    assert is_fused(loss_function)
    for gradient, other, want in zip((X.grad, parameter.grad), both[1:], wanted, strict=True):
        assert torch.equal(gradient, other) if want else gradient is None


@pytest.mark.usefixtures("float32_operands")
@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
@pytest.mark.parametrize("where", ["embeddings", "proxies"])
def test_nan_reaches_the_loss(kind, where):
    loss_function, X, y, _ = inputs(kind)
    (parameter,) = loss_function.parameters()
    (X if where == "embeddings" else parameter).data[5, 5] = torch.nan
    assert loss_function(X, y).isnan()
    assert is_fused(loss_function)


@pytest.mark.usefixtures("float32_operands")
@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
def test_no_sample_of_positive_weight(kind):
    loss_function, X, y, w = inputs(kind, weighted=True)
    loss, dX, dP = step(loss_function, X, y, torch.zeros_like(w))
    assert is_fused(loss_function)
    assert loss == 0 and not dX.any() and not dP.any()


REFUSED = {
    "weights that are numbers": lambda: (*inputs("Proxy-Anchor")[:3], torch.rand(B, device=DEVICE)),
    "a steep exponent": lambda: (losses.ProxyAnchorLoss(C, D, alpha=44.0, backend="triton"), *inputs("softmax")[1:]),
    "rows of 18 elements": lambda: inputs("softmax", shape=(B, C, 18)),
    "40 samples": lambda: inputs("Proxy-Anchor", shape=(40, C, D)),
}


@pytest.mark.usefixtures("float32_operands")
@pytest.mark.parametrize("what", REFUSED)
def test_other_steps_keep_their_plan(what):
    loss_function, *given = REFUSED[what]()
    assert step(loss_function.to(DEVICE), *given)[0].isfinite()
    assert not is_fused(loss_function) and None not in loss_function._plans.known.values()


@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
def test_proxies_by_columns_of_an_odd_length_keep_their_plan(kind):
    """Proxy-Anchor's sums read no columns, and 107 classes of two bytes are no multiple of 16."""
    with bfloat16_products():
        loss_function, *given = inputs(kind, types=(BF16, BF16))
        if kind == "Proxy-Anchor":
            loss_function.proxies.data = loss_function.proxies.data.t().contiguous().t()
        assert step(loss_function, *given)[0].isfinite()
        assert not is_fused(loss_function)


@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
def test_memory_that_no_descriptor_reads_takes_the_general_way(kind):
    with bfloat16_products():
        loss_function, *given = inputs(kind, types=(BF16, BF16), shape=(B, 112, 32))
        right = step(loss_function, *given)
        (parameter,) = loss_function.parameters()
        room = parameter.new_empty(parameter.numel() + 1)[1:].view_as(parameter)
        parameter.data = room.copy_(parameter.data)
        other = step(loss_function, *given)
    assert is_fused(loss_function) and parameter.data_ptr() % 16 == 2
    assert max(errors(other, [each.double().cpu() for each in right])) < 0.02


def test_a_card_whose_check_fails_keeps_its_plans(monkeypatch):
    def verdict(table, backend, device):
        return "it is wrong" if self_check.PRIMITIVES[id(table)].name == "fused_steps" else None

    monkeypatch.setattr(self_check, "CHECKED", {"cpu", "cuda"})
    monkeypatch.setattr(self_check, "verdict", verdict)
    monkeypatch.setattr(fused_plan, "OPERANDS", (F32,))
    dispatch._tell_once.cache_clear()
    loss_function, *given = inputs("Proxy-Anchor")
    with pytest.warns(RuntimeWarning, match="fused steps can't serve .*: it is wrong"):
        step(loss_function, *given)
    assert not is_fused(loss_function) and None not in loss_function._plans.known.values()


@ON_GPU
@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
def test_the_same_bits_twice(kind):
    shape = (512, 20_000, 128)
    found = [step(*inputs(kind, types=(BF16, BF16), shape=shape)) for _ in range(2)]
    torch.testing.assert_close(*found, rtol=0, atol=0)
