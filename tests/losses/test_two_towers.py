"""InfoNCE and the sigmoid loss of two towers against python_ref and dense PyTorch."""

import math
from functools import partial

import pytest
import torch

from python_ref import info_nce_loss, sigmoid_loss
from robustdml_ops.losses import InfoNCELoss, NTXentLoss, SigmoidLoss, SupConLoss
from tests.storages import Storages


def towers(B=23, D=7, m=0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(B, D, generator=generator, dtype=torch.float64)
    b = a + torch.randn(B, D, generator=generator, dtype=torch.float64)
    more = torch.randn(m, D, generator=generator, dtype=torch.float64)
    weights = torch.rand(B, generator=generator, dtype=torch.float64)
    weights[::4] = 0
    return [tensor.to(dtype).requires_grad_() for tensor in (a, 3 * b, more)] + [weights.to(dtype)]


CASES = {
    "symmetric": ({}, 0, False),
    "weighted": ({}, 0, True),
    "steep": ({"temperature": 0.01}, 0, True),
    "negatives": ({}, 9, True),
    "one side": ({"symmetric": False}, 9, True),
    "rince": ({"temperature": 0.3, "q": 0.5, "lam": 0.02}, 0, True),
    "sigmoid": ({}, 0, True),
}


def both(case, dtype=torch.float64, backend=None, B=23):
    """Ours and the reference's loss, each with what has a gradient."""
    options, m, weighted = CASES[case]
    a, b, more, weights = towers(B, m=m, dtype=dtype)
    weights, more = weights if weighted else None, more if m else None
    if case == "sigmoid":
        options = {"temperature": 0.2}
        module = SigmoidLoss(**options, bias=-1.0, backend=backend).to(dtype)
        theirs = sigmoid_loss(a, b, module.logit_scale, module.logit_bias, weights)
        ours = module(a, b, sample_weights=weights)
    else:
        module = InfoNCELoss(**options, backend=backend).to(dtype)
        named = {name: value for name, value in options.items() if name != "temperature"}
        theirs = info_nce_loss(a, b, module.logit_scale, more, weights, **named)
        ours = module(a, b, more, sample_weights=weights)
    assert float(module.logit_scale.detach()) == pytest.approx(-math.log(options.get("temperature", 0.07)), rel=0.01)
    return ours, theirs, [a, b, *module.parameters(), *([more] if m else [])]


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("small_chunks")
def test_values_and_gradients(case, backend):
    ours, theirs, leaves = both(case, backend=backend)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    found, expected = (torch.autograd.grad(3 * loss, leaves) for loss in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives(case):
    results = []
    for at in (0, 1):
        *losses, leaves = both(case)
        gradients = torch.autograd.grad(losses[at], leaves, create_graph=True)
        along = sum(
            (gradient * torch.linspace(-1, 1, gradient.numel()).view_as(gradient)).sum() for gradient in gradients
        )
        results.append(torch.autograd.grad(along, leaves))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)


def test_a_second_backward_of_one_graph():
    ours, _, leaves = both("negatives")
    first = torch.autograd.grad(ours, leaves, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(ours, leaves), first)


@pytest.mark.parametrize("case", ["symmetric", "sigmoid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(case, dtype):
    ours, theirs, leaves = both(case, dtype)
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.05 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    for gradient, leaf in zip(torch.autograd.grad(ours, leaves), leaves, strict=True):
        assert gradient.dtype == leaf.dtype
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("autocast", [False, True])
def test_products_of_any_length_are_of_float32(autocast):
    """Rows that no tile serves have another way, by a sweep over classes, which rounds to bfloat16 on a CPU."""
    loss_function = InfoNCELoss(backend="native")
    exact = InfoNCELoss(backend="eager").double()
    for scale in (1.0, 1e-10, 1e15):
        given = [scale * tower.detach() for tower in towers()[:2]]
        given = [tower.to(torch.float32 if autocast else torch.bfloat16) for tower in given]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            ours = loss_function(*given)
        torch.testing.assert_close(ours.double(), exact(*(tower.double() for tower in given)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("make", [InfoNCELoss, SigmoidLoss, SupConLoss, NTXentLoss])
def test_no_matrix_of_all_pairs(make):
    n = 2500
    X, Y = torch.randn(2, n, 8).requires_grad_()
    with Storages() as storages:
        make(backend="native")(X, Y if make in (InfoNCELoss, SigmoidLoss) else torch.arange(n) // 4).backward()
    assert max(storages.nbytes.values()) < 4 * n * n


@pytest.mark.parametrize("make", [partial(InfoNCELoss, symmetric=False), SigmoidLoss])
def test_gradients_are_those_of_the_sweep_without_a_copy(make):
    """Nothing else of their size exists, nor do unit rows."""
    X, Y = (torch.randn(2100, 256).requires_grad_() for _ in range(2))
    with Storages(known=(X, Y)) as storages:
        make(backend="native")(X, Y).backward()
    assert sum(size == X.nbytes for size in storages.nbytes.values()) == 2


def test_bad_input():
    a, b, more, weights = towers(m=3)
    with pytest.raises(ValueError, match="others has 22 rows, and there are 23 embeddings"):
        InfoNCELoss()(a, b[1:])
    with pytest.raises(ValueError, match="SigmoidLoss takes pairs alone: leave negatives out"):
        SigmoidLoss()(a, b, more)
    with pytest.raises(ValueError, match="sample_weights are constants of this loss"):
        InfoNCELoss()(a, b, sample_weights=weights.requires_grad_())
    with pytest.raises(ValueError, match=r"q must be in \(0, 1\], got 2"):
        InfoNCELoss(q=2)
    with pytest.raises(ValueError, match=r"overflows torch.float32 at q=1.0 and temperature 0.01: lower q"):
        InfoNCELoss(0.01, q=1.0)(torch.eye(4), torch.eye(4))


@pytest.mark.parametrize("kind", [InfoNCELoss, SigmoidLoss])
@pytest.mark.parametrize("value", [89.0, -104.0, 81.0, -81.0])
def test_a_scale_whose_exponential_leaves_its_type(kind, value):
    loss = kind()
    with torch.no_grad():
        loss.logit_scale.fill_(value)
    with pytest.raises(ValueError, match=r"logit_scale = -?[\d.]+: its exponential leaves torch\.float32"):
        loss(torch.randn(6, 8), torch.randn(6, 8))
    with torch.no_grad():
        loss.logit_scale.fill_(80.0 if value > 0 else -80.0)
    X = torch.randn(6, 8, requires_grad=True)
    value = loss(X, torch.randn(6, 8))
    value.backward()
    assert value.isfinite() and X.grad.isfinite().all()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [InfoNCELoss, SigmoidLoss])
def test_a_largest_scale(kind, compiled):
    """As CLIP trains: the parameter is clamped after each step. Another call before backward changes nothing."""
    torch._dynamo.reset()
    a, b = towers(dtype=torch.float32)[:2]
    limited, clamped = kind(0.02, max_scale=100), kind(0.02)
    call = torch.compile(limited, backend="aot_eager") if compiled else limited
    reached = []
    for rate in (-2.0, -2.0, 0.5):
        for loss, forward in ((limited, call), (clamped, clamped)):
            optimizer = torch.optim.SGD(loss.parameters(), lr=abs(rate))
            (forward(a, b) + forward(a.flip(0), b.flip(0))).backward()
            loss.logit_scale.grad.fill_(math.copysign(1, rate))
            optimizer.step()
            optimizer.zero_grad()
        reached.append(float(limited.logit_scale.detach()))
        with torch.no_grad():
            clamped.logit_scale.clamp_(max=math.log(100))
    assert reached == pytest.approx([math.log(50) + 2, math.log(100) + 2, math.log(100) - 0.5])
    limited(a, b)
    torch.testing.assert_close(limited.state_dict(), clamped.state_dict())


def test_a_largest_scale_is_for_training_alone():
    loss = InfoNCELoss(max_scale=100).eval()
    with torch.no_grad():
        loss.logit_scale.fill_(5.0)
    loss(torch.eye(4), torch.eye(4))
    assert float(loss.logit_scale.detach()) == 5
    with pytest.raises(ValueError, match=r"max_scale=10 is below the first scale, 1/temperature = 14.2857: raise one"):
        InfoNCELoss(0.07, max_scale=10)
    assert "max_scale=100" in repr(loss)
