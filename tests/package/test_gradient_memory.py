"""Memory of the last gradient serves again, and only where nobody else holds it."""

import gc

import pytest
import torch

from robustdml_ops.engine.rows import backends
from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss

B, C, D = 4, 5000, 64  # 1.3 MB


def step(loss):
    loss(torch.randn(B, D), torch.randint(C, (B,))).backward()
    (parameter,) = loss.parameters()
    return parameter.grad


@pytest.mark.parametrize("kind", [ProxyAnchorLoss, NormalizedSoftmaxLoss])  # by rows, by columns
def test_the_next_step_writes_where_the_last_did(kind):
    loss = kind(C, D)
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    places = set()
    for _ in range(4):
        gradient = step(loss)
        places.add((gradient.data_ptr(), gradient.stride()))
        del gradient
        optimizer.step()
        optimizer.zero_grad()
    assert len(places) == 1


HOLDS = {
    "the gradient": lambda gradient: gradient,
    "some rows": lambda gradient: gradient[3:],
    "an array": torch.Tensor.numpy,
    "its storage": torch.Tensor.untyped_storage,
}


@pytest.mark.parametrize("hold", HOLDS)
def test_memory_that_somebody_holds_is_left_alone(hold):
    loss = ProxyAnchorLoss(C, D)
    gradient = step(loss)
    held, place, expected = HOLDS[hold](gradient), gradient.data_ptr(), gradient.clone()
    del gradient
    loss.zero_grad()
    assert step(loss).data_ptr() != place
    kept = torch.empty(0).set_(held) if hold == "its storage" else torch.as_tensor(held)
    torch.testing.assert_close(kept.reshape(-1), expected.reshape(-1)[-kept.numel() :], rtol=0, atol=0)


@pytest.mark.parametrize("backwards", ["one after the other", "of the sum"])
def test_gradients_of_two_losses_of_one_parameter_add_up(backwards):
    first, second = ProxyAnchorLoss(C, D), ProxyAnchorLoss(C, D, alpha=8)
    second.proxies = first.proxies
    X, y = torch.randn(B, D), torch.randint(C, (B,))
    alone = []
    for loss in (first, second):
        loss.zero_grad()
        loss(X, y).backward()
        alone.append(loss.proxies.grad.clone())
    first.zero_grad()
    if backwards == "of the sum":
        (first(X, y) + second(X, y)).backward()
    else:
        first(X, y).backward()
        second(X, y).backward()
    torch.testing.assert_close(first.proxies.grad, alone[0] + alone[1])


def test_no_memory_is_held_for_a_parameter_that_is_gone():
    gc.collect()
    loss = ProxyAnchorLoss(C, D)
    step(loss)
    assert loss.proxies in backends._storages
    before = len(backends._storages)
    del loss
    gc.collect()
    assert len(backends._storages) == before - 1
