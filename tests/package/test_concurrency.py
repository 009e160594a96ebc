"""Losses beside each other: in two threads, in workers of both kinds; backward elsewhere; copied and pickled midway."""

import copy
import io
import pickle
import threading

import pytest
import torch

from robustdml_ops import losses, optim
from tests.every_call import LOSSES
from tests.subprocesses import run_python

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
    """Started together; what each returns, or raises here."""
    results, start = [None] * len(functions), threading.Barrier(len(functions))

    def run(place):
        start.wait()
        try:
            results[place] = functions[place]()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize("name", LOSSES)
def test_two_losses_at_once_have_the_bits_of_one_after_the_other(name):
    """Of one kind, each with parameters of its own; and beside them one of another kind."""
    expected = [steps(name, made(name), STEPS, seed) for seed in (1, 2)]
    modules = [made(name), made(name), made("ProxyAnchorLoss")]
    found = in_threads(
        lambda: steps(name, modules[0], STEPS, 1),
        lambda: steps(name, modules[1], STEPS, 2),
        lambda: steps("ProxyAnchorLoss", modules[2], STEPS, 3),
    )
    for mine, theirs in zip(found[:2], expected, strict=True):
        same(mine, theirs)


def large(seed):
    """What trains proxies whose gradient, of a megabyte, serves again in the next step. They are made here: PyTorch has
    one generator for all threads."""
    torch.manual_seed(seed)
    module = losses.ProxyAnchorLoss(4200, 64)

    def train():
        found = []
        for step in range(8):
            X = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))
            module(X, torch.arange(16)).backward()
            with torch.no_grad():
                module.proxies -= module.proxies.grad
            found.append(module.proxies.grad.double().sum())
            module.proxies.grad = None
        return found

    return train


def test_large_gradients_of_two_threads_do_not_share_memory():
    expected = [large(seed)() for seed in (1, 2)]
    assert expected[0] != expected[1]
    for mine, theirs in zip(in_threads(large(1), large(2)), expected, strict=True):
        same(mine, theirs)


@pytest.mark.parametrize("kind", [optim.ProxyAdamW, optim.ProxySGD, optim.ProxyAdagrad])
def test_two_optimisers_at_once(kind):
    def trained(seed):
        torch.manual_seed(seed)
        module = losses.ProxyAnchorLoss(50, 6)
        optimizer = kind(module, lr=0.1)

        def train():
            for step in range(STEPS):
                X = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
                module(X, torch.arange(16)).backward()
                optimizer.step()
            return [module.proxies.detach()]

        return train

    expected = [trained(seed)() for seed in (1, 2)]
    for mine, theirs in zip(in_threads(trained(1), trained(2)), expected, strict=True):
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
    same(found, expected)


def pickled(module):
    return pickle.loads(pickle.dumps(module))


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, pytest.param(saved, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", LOSSES)
def test_a_copy_made_midway_goes_on_as_the_original_does(name, copied):
    module = made(name)
    steps(name, module, 3, 1)
    other = copied(module)
    same(steps(name, other, 3, 2), steps(name, module, 3, 2))


CODE = """
import sys

import torch
from torch.utils.data import DataLoader

from robustdml_ops import losses


def loss_of(seed):
    random = torch.Generator().manual_seed(seed)
    X = torch.randn(64, 16, generator=random, requires_grad=True)
    loss = losses.MultiSimilarityLoss()(X, torch.arange(64) % 9)
    loss.backward()
    return float(loss.detach() + X.grad.sum())


class Losses:
    def __len__(self):
        return 6

    def __getitem__(self, seed):
        return loss_of(seed)


if __name__ == "__main__":
    torch.set_num_threads(2)
    expected = [loss_of(seed) for seed in range(6)]
    loaders = [
        DataLoader(Losses(), batch_size=1, num_workers=1, multiprocessing_context=kind, timeout=60)
        for kind in ("spawn", "fork")
    ]
    for place, found in enumerate(zip(*loaders, strict=True)):
        wanted = loss_of(place)  # in the parent, while both kinds of workers are at it
        assert wanted == expected[place]
        for one in found:
            torch.testing.assert_close(float(one), wanted, rtol=1e-4, atol=1e-4)
    print("done")
"""


@pytest.mark.nightly
def test_workers_that_were_spawned_beside_workers_that_were_forked(tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(CODE)
    run = run_python(str(script), OMP_NUM_THREADS="2")
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr[-3000:]
