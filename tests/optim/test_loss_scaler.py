"""Optimisers in the sweep beside ``torch.amp.GradScaler``: the proxies move as with those of torch."""

import copy
import math

import pytest
import torch

from robustdml_ops.losses import ArcFaceLoss, ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW, ProxySGD

B, C, D = 16, 11, 8
KINDS = [ProxyAnchorLoss, ArcFaceLoss]
RULES = [(ProxySGD, torch.optim.SGD, {"momentum": 0.9}), (ProxyAdamW, torch.optim.AdamW, {"weight_decay": 0.1})]


def scaler(scale=65536.0):
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1)


def batch():
    return torch.randn(B, D), torch.randint(C, (B,))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rule", "torch_rule", "settings"), RULES)
@pytest.mark.parametrize("half", [False, True])
def test_training_is_that_of_torch_with_the_same_scaler(kind, rule, torch_rule, settings, half):
    """Network and proxies, over growing factors, with ``unscale_`` and clipping of the network's gradients."""
    ours = kind(C, D)
    theirs, network = copy.deepcopy(ours), torch.nn.Linear(D, D)
    twin, mine, exact = copy.deepcopy(network), scaler(256.0), scaler(256.0)
    fused = rule(ours, lr=0.01, scaler=mine, **settings)
    plain = torch_rule(theirs.parameters(), lr=0.01, **settings)
    both = [(ours, network, fused, mine), (theirs, twin, plain, exact)]
    others = [torch.optim.SGD(one.parameters(), lr=1e-3) for one in (network, twin)]
    for step in range(4):
        X, labels = batch()
        for (loss, net, optimizer, scale), other in zip(both, others, strict=True):
            optimizer.zero_grad()
            other.zero_grad()
            embeddings = net(X).half() if half else net(X)
            scale.scale(loss(embeddings, labels)).backward()
            if step % 2:
                scale.unscale_(other)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scale.step(other)
            scale.step(optimizer)
            scale.update()
    assert mine.get_scale() == exact.get_scale() == 4096.0
    tolerance = 1e-3 if half else 1e-5
    for one, other in ((ours, theirs), (network, twin)):
        found, expected = list(one.parameters()), list(other.parameters())
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rule", [ProxySGD, ProxyAdamW, ProxyAdagrad])
@pytest.mark.parametrize("kind", KINDS)
def test_the_factor_moves_nothing(kind, rule):
    one = kind(C, D)
    other = copy.deepcopy(one)
    scale = scaler()
    with_scaler, without = rule(one, lr=0.1, scaler=scale), rule(other, lr=0.1)
    X, labels = batch()
    scale.scale(one(X, labels)).backward()
    scale.step(with_scaler)
    other(X, labels).backward()
    without.step()
    torch.testing.assert_close(list(one.parameters()), list(other.parameters()), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_step_without_a_finite_gradient_is_skipped_and_told(value):
    loss, scale = ArcFaceLoss(C, D), scaler(1024.0)
    optimizer, (P,) = ProxyAdamW(loss, lr=0.1, scaler=scale), loss.parameters()
    X, labels = batch()
    X.requires_grad_()
    scale.scale(loss(X, labels)).backward()
    scale.step(optimizer)
    scale.update()
    assert scale.get_scale() == 2048.0
    before, state = P.detach().clone(), copy.deepcopy(optimizer.state[P])
    X.grad = None
    (scale.scale(loss(X, labels)) * value).backward()
    assert not X.grad.isfinite().any()
    scale.step(optimizer)
    scale.update()
    assert scale.get_scale() == 1024.0
    torch.testing.assert_close(P.detach(), before, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state[P], state, rtol=0, atol=0)
    optimizer.zero_grad()
    scale.scale(loss(X, labels)).backward()
    scale.step(optimizer)
    assert not torch.equal(P, before)


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_go_with_a_scaler_is_refused(kind):
    loss, scale = kind(C, D), scaler()
    optimizer, (P,) = ProxySGD(loss, lr=0.1, scaler=scale), loss.parameters()
    with pytest.raises(RuntimeError, match=r"is 1, and .* takes 65536, .*: take scaler\.scale\(loss\)\.backward\(\)"):
        loss(*batch()).backward()
    optimizer.abandon()
    scale.scale(loss(*batch())).backward()
    with pytest.raises(RuntimeError, match="updated since the last step"):  # accumulation
        scale.scale(loss(*batch())).backward()
    with pytest.raises(RuntimeError, match="no such gradient exists"):  # clipping by a norm
        torch.nn.utils.clip_grad_norm_([P], 1.0)
    scale.step(optimizer)
    with pytest.raises(TypeError, match=r"scaler must be a torch\.amp\.GradScaler, got float"):
        ProxySGD(kind(C, D), scaler=65536.0)


def test_a_scaler_that_is_off():
    loss, scale = ArcFaceLoss(C, D), torch.amp.GradScaler("cpu", enabled=False)
    optimizer = ProxySGD(loss, lr=0.1, scaler=scale)
    scale.scale(loss(*batch())).backward()
    scale.step(optimizer)
    scale.update()
