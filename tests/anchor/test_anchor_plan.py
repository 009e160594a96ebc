"""The planned step of Proxy-Anchor in one native call: the bits of the general way, and its graph."""

from types import SimpleNamespace

import pytest
import torch

from robustdml_ops.backends import native_module
from robustdml_ops.engine.validation import NotFiniteError
from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss
from robustdml_ops.ops.anchor.plan import AnchorPlan

pytestmark = pytest.mark.skipif(native_module.matrix_product(torch.float32) == 0, reason="no lanes here")


@pytest.fixture
def calls(monkeypatch):
    """Counts the planned steps, or keeps all on the general way."""
    seen, run = SimpleNamespace(taken=0, allowed=True), AnchorPlan.run

    def counted(plan, *tensors):
        results = run(plan, *tensors) if seen.allowed else None
        seen.taken += results is not None
        return results

    monkeypatch.setattr(AnchorPlan, "run", counted)
    return seen


def inputs(B=37, C=301, D=23, dtype=torch.float32, **settings):
    torch.manual_seed(0)
    loss_function = ProxyAnchorLoss(C, D, **settings).to(dtype)
    loss_function.proxies.data[3] = 0
    return loss_function, torch.randn(B, D, dtype=dtype, requires_grad=True), torch.randint(C, (B,))


def step(loss_function, X, y, upstream=1.0):
    X.grad = loss_function.proxies.grad = None
    loss = loss_function(X, y)
    (upstream * loss).backward()
    return [tensor.detach().clone() for tensor in (loss, X.grad, loss_function.proxies.grad)]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("settings", "upstream"), [({}, 1.0), ({"alpha": 500.0, "margin": 0.3}, 1.0), ({"margin": 0}, 0.3)], ids=str
)
def test_bits_of_the_general_way(calls, dtype, settings, upstream, threads):
    loss_function, X, y = inputs(dtype=dtype, **settings)
    for count in (1, 3):
        threads(count)
        calls.allowed = False
        general = step(loss_function, X, y, upstream)
        calls.allowed = True
        torch.testing.assert_close(step(loss_function, X, y, upstream), general, rtol=0, atol=0)
    assert calls.taken == 2


def test_graph_of_the_general_way(calls):
    """A second backward, and the derivative of a gradient, of embeddings that have a graph of their own."""
    found = []
    for calls.allowed in (False, True):
        loss_function, X, y = inputs(dtype=torch.float64)
        matrices = X, loss_function.proxies
        loss = loss_function(X * X, y)
        again = [torch.autograd.grad(loss, matrices, retain_graph=True) for _ in range(2)]
        first = torch.autograd.grad(loss, matrices, create_graph=True)
        second = torch.autograd.grad(sum((gradient**2).sum() for gradient in first), matrices)
        found.append([*again[0], *again[1], *first, *second])
    assert calls.taken == 1
    torch.testing.assert_close(*reversed(found), rtol=1e-12, atol=1e-14)


def test_proxies_changed_before_backward_are_refused(calls):
    loss_function, X, y = inputs()
    loss = loss_function(X, y)
    loss.backward(retain_graph=True)
    with torch.no_grad():
        loss_function.proxies += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert calls.taken == 1


SPOILT = {
    "an embedding": lambda loss_function, X, y: X.data[2].fill_(torch.nan),
    "a proxy": lambda loss_function, X, y: loss_function.proxies.data[5].fill_(torch.inf),
    "a label": lambda loss_function, X, y: y[1:2].fill_(loss_function.num_classes),
    "alpha": lambda loss_function, X, y: setattr(loss_function, "alpha", -1),
}


@pytest.mark.parametrize("what", SPOILT)
def test_errors_of_the_general_way(calls, what):
    given, messages = inputs(), []
    SPOILT[what](*given)
    for calls.allowed in (False, True):
        with pytest.raises((ValueError, IndexError)) as error:
            given[0](*given[1:])
        messages.append(str(error.value))
    assert messages[0] == messages[1] and calls.taken == 0


def test_rows_of_any_length_take_the_general_way(calls):
    loss_function, X, y = inputs()
    loss_function.proxies.data[7] *= 1e-30
    step(loss_function, X, y)
    loss_function, X, y = inputs()
    X.data[7] *= 1e-30
    step(loss_function, X, y)
    assert calls.taken == 0


OPTIONS = {
    "weights that want a gradient": ({}, lambda B: {"sample_weights": torch.rand(B, requires_grad=True)}),
    "none": ({"reduction": "none"}, lambda B: {}),
    "sampled": ({"negative_share": 0.5}, lambda B: {}),
    "dropped": ({"drop_similar_negatives": 0.4}, lambda B: {}),
    "eager": ({"backend": "eager"}, lambda B: {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_take_the_general_way(calls, name):
    settings, given = OPTIONS[name]
    loss_function, X, y = inputs(**settings)
    loss_function(X, y, **given(len(X))).sum().backward()
    assert calls.taken == 0


WEIGHTS = {
    "some": lambda B: torch.rand(B),
    "a mask": lambda B: torch.rand(B) < 0.5,
    "in double": lambda B: torch.rand(B, dtype=torch.float64).mul_(3),
    "none": lambda B: torch.zeros(B),
}


@pytest.mark.parametrize("which", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sample_weights(calls, which, dtype):
    loss_function, X, y = inputs(dtype=dtype)
    weights, found = WEIGHTS[which](len(X)), []
    for calls.allowed in (False, True):
        X.grad = loss_function.proxies.grad = None
        loss = loss_function(X, y, sample_weights=weights)
        loss.backward()
        found.append([loss.detach(), X.grad, loss_function.proxies.grad])
    assert calls.taken == 1
    bound = 1e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(found[1], found[0], rtol=bound, atol=bound)


def test_ignored_samples(calls):
    found = []
    for calls.allowed in (False, True):
        loss_function, X, y = inputs(dtype=torch.float64, ignore_index=-7)
        y[4:9] = -7
        found.append(step(loss_function, X, y))
    assert calls.taken == 1 and not found[1][1][4:9].any()
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("bad", [-1.0, torch.nan, torch.inf, 1e30])
def test_wrong_weights_have_the_general_error(calls, bad):
    loss_function, X, y = inputs()
    weights = torch.ones(len(X))
    weights[3] = bad
    with pytest.raises(ValueError, match="sample_weights must be finite and not negative"):
        loss_function(X, y, sample_weights=weights)
    assert calls.taken == 0


def test_only_gradients_that_are_wanted(calls):
    loss_function, X, y = inputs()
    whole = step(loss_function, X, y)
    X.grad = loss_function.proxies.grad = None
    loss_function(X.detach(), y).backward()
    loss_function.requires_grad_(False)
    loss_function(X, y).backward()
    with torch.no_grad():
        value = loss_function(X, y)
    loss_function.requires_grad_(True)
    torch.testing.assert_close([value, X.grad, loss_function.proxies.grad], whole, rtol=0, atol=0)
    assert calls.taken == 4 and not value.requires_grad


def test_tensors_that_are_not_plain_take_the_general_way(calls):
    loss_function, X, y = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        loss_function(X, y)
    for odd in (X.bfloat16(), X.t().contiguous().t()):
        loss_function(odd, y)
    loss_function(X, y.int())
    loss_function(X, torch.stack([y, (y + 1) % loss_function.num_classes], 1))
    torch.func.grad(lambda X: loss_function(X, y))(X.detach())
    loss_function(X[:0], y[:0])
    assert calls.taken == 0


LEARNT = {
    "one margin": {},
    "a margin of each class": {"per_class": True},
    "without the regulariser": {"regularization": 0.0},
}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("settings", LEARNT.values(), ids=LEARNT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_learnt_margins(calls, settings, dtype):
    """Value, all gradients and second derivatives of Adaptive Proxy-Anchor, beside the general way."""
    torch.manual_seed(0)
    loss_function = AdaptiveProxyAnchorLoss(31, 9, **settings).to(dtype)
    loss_function.margins.data.uniform_(-0.05, 0.3)
    X, y, weights = torch.randn(24, 9, dtype=dtype, requires_grad=True), torch.randint(31, (24,)), torch.rand(24) < 0.8
    tensors, found = (X, *loss_function.parameters()), []
    for calls.allowed in (False, True):
        loss = loss_function(X, y, sample_weights=weights)
        gradients = torch.autograd.grad(loss, tensors, torch.tensor(0.3, dtype=dtype), retain_graph=True)
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        second = torch.autograd.grad(sum((gradient**2).sum() for gradient in first), tensors)
        found.append([loss.detach(), *gradients, *first, *second])
    assert calls.taken == 1
    bound = 2e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(*reversed(found), rtol=bound, atol=bound)


def test_learnt_margins_that_are_frozen_or_have_a_pole(calls):
    loss_function = AdaptiveProxyAnchorLoss(31, 9)
    X, y = torch.randn(24, 9, requires_grad=True), torch.randint(31, (24,))
    loss_function.margins.requires_grad_(False)
    loss_function(X, y).backward()
    assert calls.taken == 1 and loss_function.margins.grad is None and X.grad.abs().sum() > 0
    loss_function.margins.data.fill_(-0.1)
    with pytest.raises(NotFiniteError, match=r"mean\(margins\) = -0.1"):
        loss_function(X, y)
    loss_function = AdaptiveProxyAnchorLoss(31, 9, per_class=True, negative_margin="proxy")
    loss_function(X, y).backward()
    assert calls.taken == 1  # a margin of the proxies takes the general way
