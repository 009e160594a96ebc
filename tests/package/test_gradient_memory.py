"""Memory of the last gradient serves again, and only where nobody else holds it."""

import gc

import pytest
import torch

from robustdml_ops.engine import gradient_memory
from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss

B, C, D = 4, 5000, 64  # 1.3 MB


def step(loss):
    loss(torch.randn(B, D), torch.randint(C, (B,))).backward()
    (parameter,) = loss.parameters()
    return parameter.grad


def test_the_next_step_writes_where_the_last_did():
    loss = ProxyAnchorLoss(C, D)
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    places = set()
    for _ in range(4):
        places.add(step(loss).data_ptr())
        optimizer.step()
        optimizer.zero_grad()
    assert len(places) == 1


def test_by_columns_too():
    loss = NormalizedSoftmaxLoss(C, D)
    first = step(loss)
    place, strides = first.data_ptr(), first.stride()
    del first
    loss.zero_grad()
    again = step(loss)
    assert (again.data_ptr(), again.stride()) == (place, strides)


@pytest.mark.parametrize("hold", ["the gradient", "a part", "an array", "its storage"])
def test_memory_that_somebody_holds_is_left_alone(hold):
    loss = ProxyAnchorLoss(C, D)
    held, place, expected = hold_of(step(loss), hold)
    loss.zero_grad()
    torch.manual_seed(1)
    assert step(loss).data_ptr() != place
    kept = torch.empty(0).set_(held) if hold == "its storage" else torch.as_tensor(held)
    torch.testing.assert_close(kept.reshape(-1), expected.reshape(-1)[-kept.numel() :], rtol=0, atol=0)


def hold_of(gradient, hold):
    """What is held of a gradient, where that lies, and its values."""
    held = {
        "the gradient": lambda: gradient,
        "a part": lambda: gradient[3:],
        "an array": gradient.numpy,
        "its storage": gradient.untyped_storage,
    }[hold]()
    return held, gradient.data_ptr(), gradient.clone()


def test_accumulated_gradients_add_up():
    loss = ProxyAnchorLoss(C, D)
    batches = [(torch.randn(B, D), torch.randint(C, (B,))) for _ in range(3)]
    alone = []
    for X, y in batches:
        loss.zero_grad()
        loss(X, y).backward()
        alone.append(loss.proxies.grad.clone())
    loss.zero_grad()
    for X, y in batches:
        loss(X, y).backward()
    torch.testing.assert_close(loss.proxies.grad, sum(alone))


def test_two_losses_of_one_parameter_in_one_step():
    first, second = ProxyAnchorLoss(C, D), ProxyAnchorLoss(C, D, alpha=8)
    second.proxies = first.proxies
    X, y = torch.randn(B, D), torch.randint(C, (B,))
    alone = []
    for loss in (first, second):
        loss.zero_grad()
        loss(X, y).backward()
        alone.append(loss.proxies.grad.clone())
    first.zero_grad()
    (first(X, y) + second(X, y)).backward()
    torch.testing.assert_close(first.proxies.grad, alone[0] + alone[1])


def test_nothing_is_kept_of_a_parameter_that_is_gone():
    gc.collect()
    loss = ProxyAnchorLoss(C, D)
    step(loss)
    assert loss.proxies in gradient_memory._kept
    before = len(gradient_memory._kept)
    del loss
    gc.collect()
    assert len(gradient_memory._kept) == before - 1
