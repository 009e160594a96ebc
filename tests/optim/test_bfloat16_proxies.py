"""Proxies of two bytes: small steps add up, and what else is done to proxies keeps their type."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from robustdml_ops.losses import ArcFaceLoss, ProxyAnchorLoss, SubCenterArcFaceLoss, load_class_matrix
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW, ProxySGD, grow_classes

C, D = 300, 16
HALF = torch.bfloat16
RULES = {
    "adamw": lambda loss, lr: ProxyAdamW(loss, lr=lr * 0.1, moments=HALF),
    "sgd": lambda loss, lr: ProxySGD(loss, lr=lr),
    "momentum": lambda loss, lr: ProxySGD(loss, lr=lr * 0.1, momentum=0.9),
    "adagrad": lambda loss, lr: ProxyAdagrad(loss, lr=lr, initial_accumulator_value=1.0),
    "torch": lambda loss, lr: torch.optim.SGD(loss.parameters(), lr=lr),
    "torch adamw": lambda loss, lr: torch.optim.AdamW(loss.parameters(), lr=lr * 0.1, weight_decay=0.0),
}


def distance(rule, kind, backend, lr=1e-3):
    """How far the proxies go in 40 steps along the way of a float32 run, as a share of that way."""
    torch.manual_seed(2)
    exact = kind(C, D, backend=backend)
    with torch.no_grad():
        exact._class_parameter().copy_(exact._class_parameter().to(HALF))
    rounded = copy.deepcopy(exact).bfloat16()
    start = exact._class_parameter().detach().clone()
    X, labels = torch.randn(64, D), torch.randint(C, (64,))
    for loss in (exact, rounded):
        optimizer = RULES[rule](loss, lr)
        for _ in range(40):
            optimizer.zero_grad()
            loss(X, labels).backward()
            optimizer.step()
    way, gone = (loss._class_parameter().detach().double() - start for loss in (exact, rounded))
    return float((way * gone).sum() / way.square().sum())


@pytest.mark.parametrize("rule", [rule for rule in RULES if "torch" not in rule])
@pytest.mark.parametrize("kind", [ProxyAnchorLoss, ArcFaceLoss])
def test_small_steps_add_up(rule, kind, backend):
    assert distance(rule, kind, backend) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("rule", ["torch", "torch adamw"])
def test_an_optimiser_that_rounds_to_the_nearest_loses_them_and_is_named(rule):
    with pytest.warns(UserWarning, match=r"\.W of ArcFaceLoss is torch.bfloat16.* robustdml_ops\.optim"):
        assert distance(rule, ArcFaceLoss, None) < 0.1


@pytest.mark.parametrize("kind", [ProxyAnchorLoss, ArcFaceLoss])
def test_they_are_loaded_drawn_and_grow(kind, backend):
    """Steps on drawn rows leave the others' bits alone; new and moved rows, and moments, are bfloat16 after growth."""
    head = torch.randn(C, D)
    loss = kind(C, D, negative_share=0.1, backend=backend).bfloat16()
    load_class_matrix(loss, head)
    assert torch.equal(loss._class_matrix(), head.to(HALF))
    optimizer = ProxyAdamW(loss, lr=0.1, moments=HALF)
    loss(torch.randn(8, D), torch.arange(8)).backward()
    optimizer.step()
    moved = (loss._class_matrix() != head.to(HALF)).any(1)
    assert moved[:8].all()
    assert int(moved.sum()) <= 8 + 30
    before, init = loss._class_matrix().detach().clone(), torch.randn(2, D)
    grow_classes(loss, optimizer, torch.tensor([5, -1, 7, -1]), init=init)
    parameter = loss._class_parameter()
    expected = torch.stack([before[5], init[0].to(HALF), before[7], init[1].to(HALF)])
    assert torch.equal(loss._class_matrix(), expected)
    assert {parameter.dtype, *(optimizer.state[parameter][name].dtype for name in optimizer.moment_names)} == {HALF}
    loss(torch.randn(4, D), torch.arange(4)).backward()
    optimizer.step()


class Largest(TorchDispatchMode):
    """Bytes of the largest result of an operation."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor):
                self.bytes = max(self.bytes, one.numel() * one.element_size())
        return found


@pytest.mark.parametrize("kind", [ProxyAnchorLoss, ArcFaceLoss, SubCenterArcFaceLoss])
def test_proxies_are_made_in_their_type(kind):
    with Largest() as largest:
        loss = kind(500, 16, dtype=torch.bfloat16)
    matrix = next(loss.parameters())
    assert matrix.dtype == torch.bfloat16 and matrix.float().std() > 0
    assert largest.bytes == 2 * matrix.numel()
    with pytest.raises(ValueError, match=r"dtype=torch\.float16: proxies are"):
        kind(500, 16, dtype=torch.float16)
