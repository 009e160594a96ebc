"""The step of Proxy-Anchor without options in one native call: the bits of the general way, and its graph."""

from types import SimpleNamespace

import pytest
import torch

from robustdml_ops.backends import native_module
from robustdml_ops.losses import ProxyAnchorLoss, proxy_anchor

pytestmark = pytest.mark.skipif(native_module.matrix_product(torch.float32) == 0, reason="no lanes here")


@pytest.fixture
def calls(monkeypatch):
    """Counts the steps that one native call has taken, or keeps all on the general way."""
    seen, step = SimpleNamespace(taken=0, allowed=True), proxy_anchor.anchor_step

    def counted(*arguments):
        loss = step(*arguments) if seen.allowed else None
        seen.taken += loss is not None
        return loss

    monkeypatch.setattr(proxy_anchor, "anchor_step", counted)
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
    "weights": ({}, lambda B: {"sample_weights": torch.rand(B)}),
    "none": ({"reduction": "none"}, lambda B: {}),
    "sampled": ({"negative_share": 0.5}, lambda B: {}),
    "dropped": ({"drop_similar_negatives": 0.4}, lambda B: {}),
    "eager": ({"backend": "eager"}, lambda B: {}),
    "ignored": ({"ignore_index": 5}, lambda B: {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_take_the_general_way(calls, name):
    settings, given = OPTIONS[name]
    loss_function, X, y = inputs(**settings)
    loss_function(X, y, **given(len(X))).sum().backward()
    assert calls.taken == 0


def test_tensors_that_are_not_plain_take_the_general_way(calls):
    loss_function, X, y = inputs()
    with torch.no_grad():
        loss_function(X, y)
    with torch.autocast("cpu", torch.bfloat16):
        loss_function(X, y)
    for odd in (X.detach(), X.bfloat16(), X.t().contiguous().t()):
        loss_function(odd, y)
    loss_function(X, y.int())
    loss_function(X, torch.stack([y, (y + 1) % loss_function.num_classes], 1))
    torch.func.grad(lambda X: loss_function(X, y))(X.detach())
    loss_function(X[:0], y[:0])
    assert calls.taken == 0
