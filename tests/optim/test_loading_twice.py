"""A state is loaded as often as a run needs it: the best one again, back after a NaN, a checkpoint and then another."""

import copy
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW, ProxySGD, grow_classes

B, C, D = 12, 21, 5
RULES = {"adamw": ProxyAdamW, "sgd": ProxySGD, "adagrad": ProxyAdagrad}
TORCH = [("adamw", torch.optim.AdamW, {}), ("sgd", torch.optim.SGD, {"momentum": 0.9}), ("sgd", torch.optim.SGD, {})]


def train(loss, optimizer, steps=2):
    torch.manual_seed(steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(torch.randn(B, D), torch.randint(loss.num_classes, (B,))).backward()
        optimizer.step()


def moments_of(loss, optimizer):
    return {name: value.clone() for name, value in optimizer.state[next(loss.parameters())].items()}


def equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [ProxyAnchorLoss, NormalizedSoftmaxLoss])
@pytest.mark.parametrize("rule", RULES)
def test_its_own_state_three_times_and_training_goes_on_as_it_did(rule, kind):
    loss = kind(C, D)
    optimizer = RULES[rule](loss, lr=0.1)
    train(loss, optimizer)
    proxies, saved = copy.deepcopy(loss.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = moments_of(loss, optimizer)
    train(loss, optimizer)
    went_on = copy.deepcopy(loss.state_dict())
    for _ in range(3):
        loss.load_state_dict(proxies)
        optimizer.load_state_dict(saved)
        equal(moments_of(loss, optimizer), expected)
        train(loss, optimizer)
        equal(loss.state_dict(), went_on)


@pytest.mark.parametrize(("rule", "plain", "settings"), TORCH)
def test_torchs_state_between_its_own(rule, plain, settings):
    loss = ProxyAnchorLoss(C, D)
    optimizer = RULES[rule](loss, lr=0.1, seed=7, **settings)
    train(loss, optimizer)
    own, expected = copy.deepcopy(optimizer.state_dict()), moments_of(loss, optimizer)
    other = ProxyAnchorLoss(C, D)
    theirs = plain(other.parameters(), lr=0.2, **settings)
    train(other, theirs)
    for _ in range(2):
        optimizer.load_state_dict(theirs.state_dict())
        group = optimizer.param_groups[0]
        assert (group["lr"], group["seed"], group["moments"]) == (0.2, 7, torch.float32)
        train(loss, optimizer)
        optimizer.load_state_dict(own)
        equal(moments_of(loss, optimizer), expected)
        assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("rule", RULES)
def test_distributed_checkpoints_twice(tmp_path, rule):
    loss = ProxyAnchorLoss(C, D)
    optimizer = RULES[rule](loss, lr=0.1)
    train(loss, optimizer)
    expected = moments_of(loss, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own deprecations
        dcp.save(get_optimizer_state_dict(loss, optimizer), checkpoint_id=tmp_path, no_dist=True)
        for _ in range(2):
            train(loss, optimizer)
            state = get_optimizer_state_dict(loss, optimizer)
            dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
            set_optimizer_state_dict(loss, optimizer, state)
            equal(moments_of(loss, optimizer), expected)


@pytest.mark.parametrize("rule", RULES)
def test_classes_that_grow_between_two_loads(rule):
    loss = ProxyAnchorLoss(C, D)
    optimizer = RULES[rule](loss, lr=0.1)
    train(loss, optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    grow_classes(loss, optimizer, C + 3)
    train(loss, optimizer)
    grown, expected = copy.deepcopy(optimizer.state_dict()), moments_of(loss, optimizer)
    for _ in range(2):
        train(loss, optimizer)
        optimizer.load_state_dict(grown)
        equal(moments_of(loss, optimizer), expected)


@pytest.mark.parametrize("rule", RULES)
def test_another_group_after_a_load_has_its_own_settings_alone(rule):
    loss, second = ProxyAnchorLoss(C, D), ProxyAnchorLoss(C, D)
    optimizer = RULES[rule](loss, lr=0.1)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.add_param_group({"loss": second})
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(2):
        optimizer.load_state_dict(saved)
