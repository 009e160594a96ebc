"""Losses and optimisers in two threads, backward in another thread, and copies made midway."""

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from robustdml_ops import losses, ops, optim
from tests.every_call import LOSSES

STEPS = 6


def steps(name, module, count, seed):
    """The losses, gradients and state of some steps of training."""
    call, generator, found = LOSSES[name], torch.Generator().manual_seed(seed), []
    parameters = list(module.parameters())
    for _ in range(count):
        inputs = call.inputs()
        key = call.differentiable[0]
        leaf = inputs[key] * (1 + torch.rand(inputs[key].shape, generator=generator, dtype=torch.float64))
        loss = module(**inputs | {key: leaf.requires_grad_()})
        slopes = torch.autograd.grad(loss, [leaf, *parameters])
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes[1:], strict=True):
                parameter -= 1e-4 * slope
        found += [loss.detach(), *slopes]
    return [*found, *(value.clone() for value in module.state_dict().values())]


def made(name):
    torch.manual_seed(0)
    return LOSSES[name].make()


def same(found, expected):
    assert len(found) == len(expected)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def in_threads(*functions):
    """The results of functions that start together."""
    start = threading.Barrier(len(functions))

    def run(function):
        start.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


@pytest.mark.parametrize("name", LOSSES)
def test_two_losses_at_once_have_the_bits_of_one_after_the_other(name):
    """Two of one kind and one of another, each with its own parameters."""
    expected = [steps(name, made(name), STEPS, seed) for seed in (1, 2)]
    modules = [made(name), made(name), made("ProxyAnchorLoss")]
    found = in_threads(
        lambda: steps(name, modules[0], STEPS, 1),
        lambda: steps(name, modules[1], STEPS, 2),
        lambda: steps("ProxyAnchorLoss", modules[2], STEPS, 3),
    )
    for mine, theirs in zip(found[:2], expected, strict=True):
        same(mine, theirs)


def proxies_of(optimizer, seed):
    """A function that trains proxies, made here since PyTorch has one generator for all threads.

    Their gradient, 1 MB, is written into the same memory in each step.
    """
    torch.manual_seed(seed)
    module = losses.ProxyAnchorLoss(4200, 64)
    step = optimizer(module, lr=0.1)

    def train():
        for seed in range(STEPS):
            X = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed))
            module(X, torch.arange(16)).backward()
            step.step()
            step.zero_grad()
        return [module.proxies.detach()]

    return train


OPTIMIZERS = [lambda module, lr: torch.optim.SGD(module.parameters(), lr)]
OPTIMIZERS += [optim.ProxyAdamW, optim.ProxySGD, optim.ProxyAdagrad]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_large_gradients_and_optimisers_of_two_threads_share_nothing(optimizer):
    expected = [proxies_of(optimizer, seed)() for seed in (1, 2)]
    assert not torch.equal(*expected[0], *expected[1])
    found = in_threads(proxies_of(optimizer, 1), proxies_of(optimizer, 2))
    for mine, theirs in zip(found, expected, strict=True):
        same(mine, theirs)


@pytest.mark.parametrize("name", LOSSES)
def test_backward_in_another_thread(name):
    call, module = LOSSES[name], made(name)
    inputs = call.inputs()
    leaf = inputs[call.differentiable[0]].requires_grad_()
    loss = module(**inputs)
    leaves = [leaf, *module.parameters()]
    expected = torch.autograd.grad(loss, leaves, retain_graph=True)
    (found,) = in_threads(lambda: torch.autograd.grad(loss, leaves))
    # A second backward takes the general way, which rounds otherwise than a planned step.
    torch.testing.assert_close(found, expected)


def test_python_runs_while_the_native_module_computes():
    """Neither of the two ways in which C++ functions are bound holds the GIL."""
    values, X, P, y = torch.rand(400, 4096), torch.randn(256, 64), torch.randn(100_000, 64), torch.arange(256)
    for call in (
        lambda: ops.otsu_threshold(values, backend="native"),
        lambda: ops.class_lse(X, P, y, backend="native"),
    ):
        thread, seen = threading.Thread(target=call), 0
        thread.start()
        while thread.is_alive():
            seen += 1
            time.sleep(0.001)
        assert seen > 3


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
@pytest.mark.parametrize("name", LOSSES)
def test_a_copy_made_midway_goes_on_as_the_original_does(name, copied):
    module = made(name)
    steps(name, module, 3, 1)
    other = copied(module)
    same(steps(name, other, 3, 2), steps(name, module, 3, 2))
