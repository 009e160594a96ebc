"""A step by micro-batches has the embeddings, loss and gradients of the whole batch."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from robustdml_ops import backward_in_micro_batches, losses
from robustdml_ops.optim import ProxySGD
from robustdml_ops.robust import PRISM
from tests.every_call import LOSSES, B, D, random

NAMES = sorted(name for name, call in LOSSES.items() if call.differentiable[0] == "embeddings")
F = 9


def network(columns=D, dropout=0.3):
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(F, 12), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, columns)).double()


def whole_step(loss, towers, micro_batch, seed=3):
    """A step with one graph, whose dropout masks are those of the micro-batches."""
    torch.manual_seed(seed)
    found = loss(*[torch.cat([one(rows) for rows in inputs.split(micro_batch)]) for one, inputs in towers])
    found.backward()
    return found.detach()


def gradients(*modules):
    return [parameter.grad for module in modules for parameter in module.parameters()]


def assert_same_steps(loss, module, towers, micro_batch, whole=None):
    """The step by micro-batches beside that of the whole batch, from the same state."""
    others, other = copy.deepcopy([one for one, _ in towers]), copy.deepcopy(module)
    pairs = [(one, inputs) for one, (_, inputs) in zip(others, towers, strict=True)]
    expected = whole_step(partial(loss, other), pairs, whole or micro_batch)
    end = torch.get_rng_state()
    torch.manual_seed(3)
    found = backward_in_micro_batches(partial(loss, module), *towers, micro_batch=micro_batch)
    assert not found.requires_grad and torch.equal(torch.get_rng_state(), end)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    mine, theirs = gradients(*(one for one, _ in towers), module), gradients(*others, other)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in mine)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("micro_batch", [1, 3, B])
@pytest.mark.parametrize("name", NAMES)
def test_every_loss(name, micro_batch):
    """With dropout, one tower for each matrix of embeddings that the loss differentiates."""
    call = LOSSES[name]
    towers = [(network(), random(B, F, seed=place)) for place, _ in enumerate(call.differentiable)]

    def loss(module, *embeddings):
        return call(module, **dict(zip(call.differentiable, embeddings, strict=True)))

    assert_same_steps(loss, call.make(), towers, micro_batch)


@pytest.mark.parametrize("micro_batch", [1, 7, 32, 96, 200])
@pytest.mark.parametrize("kind", [losses.SupConLoss, partial(losses.ProxyAnchorLoss, 24, D)], ids=["pairs", "proxies"])
def test_any_size_of_the_micro_batch(kind, micro_batch):
    """Without dropout the whole batch goes through the network at once."""
    y = torch.arange(96) // 4
    towers = [(network(dropout=0.0), random(96, F))]
    assert_same_steps(lambda module, embeddings: module(embeddings, y), kind().double(), towers, micro_batch, whole=96)


def test_a_network_for_both_towers():
    shared, texts, images = network(), random(B, F, seed=1), random(B, F, seed=2)
    other = copy.deepcopy(shared)
    loss = losses.InfoNCELoss().double()
    whole_step(copy.deepcopy(loss), [(other, images), (other, texts)], 3)
    torch.manual_seed(3)
    backward_in_micro_batches(loss, (shared, images), (shared, texts), micro_batch=3)
    torch.testing.assert_close(gradients(shared), gradients(other), rtol=1e-10, atol=1e-10)


class TwoInputs(nn.Module):
    """Arguments by name, one of which has no rows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(F, D)

    def forward(self, left, right, scale=1.0):
        return self.layer(left["rows"] + scale * right)


@pytest.mark.parametrize("by_name", [False, True])
def test_inputs_of_several_tensors(by_name):
    one, loss = TwoInputs().double(), losses.SupConLoss()
    left, right, y = {"rows": random(B, F)}, random(B, F, seed=1), torch.arange(B) // 2
    expected = loss(one(left, right, 2.0), y)
    wanted = torch.autograd.grad(expected, list(one.parameters()))
    inputs = {"right": right, "left": left, "scale": 2.0} if by_name else (left, right, 2.0)
    found = backward_in_micro_batches(lambda embeddings: loss(embeddings, y), (one, inputs), micro_batch=3)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(one), list(wanted), rtol=1e-10, atol=1e-12)


def test_autocast_and_a_loss_scaler():
    one, loss, y = network().float(), losses.SupConLoss(), torch.arange(B) // 2
    inputs, scaler = random(B, F, dtype=torch.float32), torch.amp.GradScaler("cpu", init_scale=8.0)
    other = copy.deepcopy(one)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        embeddings = torch.cat([other(rows) for rows in inputs.split(3)])
        expected = loss(embeddings, y)
    (8 * expected).backward()
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        found = backward_in_micro_batches(
            lambda embeddings: loss(embeddings, y), (one, inputs), micro_batch=3, scaler=scaler
        )
    assert torch.equal(found, expected.detach())
    torch.testing.assert_close(gradients(one), gradients(other), rtol=1e-5, atol=1e-6)


def test_filter_memory_and_optimiser_in_the_sweep():
    """A filter with a bank, and proxies that the sweep itself updates, over several steps."""
    C, y = 6, torch.arange(B) % 6

    def train(step):
        torch.manual_seed(0)
        one, loss, prism = network(), losses.ProxyAnchorLoss(C, D).double(), PRISM(C, D, noise_rate=0.3, memory_size=24)
        optimizers = torch.optim.SGD(one.parameters(), lr=0.1), ProxySGD(loss, lr=0.1)

        def filtered(embeddings):
            result = prism(embeddings, y)
            prism.enqueue(embeddings, y, result.keep)
            return loss(embeddings, y, sample_weights=result.keep.double())

        for seed in range(3):
            torch.manual_seed(seed)
            step(filtered, one, random(B, F, seed=seed))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [*one.parameters(), loss.proxies, *(buffer.nan_to_num(0) for buffer in prism.buffers())]

    def whole(loss, one, inputs):
        loss(torch.cat([one(rows) for rows in inputs.split(3)])).backward()

    def parts(loss, one, inputs):
        backward_in_micro_batches(loss, (one, inputs), micro_batch=3)

    torch.testing.assert_close(train(parts), train(whole), rtol=1e-10, atol=1e-10)


def test_memory_is_that_of_one_micro_batch():
    """Bytes of activations that wait for backward at the same time."""

    class Kept:
        alive = most = 0

        def __init__(self, tensor):
            self.tensor, self.bytes = tensor.detach(), tensor.nbytes
            Kept.alive += self.bytes
            Kept.most = max(Kept.most, Kept.alive)

        def __del__(self):
            Kept.alive -= self.bytes

    wide = nn.Sequential(nn.Linear(F, 4096), nn.Tanh(), nn.Linear(4096, D)).double()
    loss, inputs, y = losses.SupConLoss(), random(64, F), torch.arange(64) // 4
    found = []
    for micro_batch in (64, 4):
        Kept.most = 0
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            backward_in_micro_batches(lambda embeddings: loss(embeddings, y), (wide, inputs), micro_batch=micro_batch)
        found.append(Kept.most)
    weights = sum(parameter.nbytes for parameter in wide.parameters())
    assert found[0] > 64 * 4096 * 8 and found[1] < 2 * 4 * 4096 * 8 + weights + 64 * 100 * 8


def test_buffers_change_once():
    one, loss, y = network(), losses.SupConLoss(), torch.arange(B) // 2
    one.append(nn.BatchNorm1d(D).double())
    other, inputs = copy.deepcopy(one), random(B, F)
    whole_step(lambda embeddings: loss(embeddings, y), [(other, inputs)], 4)
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="batch normalisation in training mode normalises by the micro-batch") as seen:
        backward_in_micro_batches(lambda embeddings: loss(embeddings, y), (one, inputs), micro_batch=4)
    assert seen[0].filename == __file__
    torch.testing.assert_close(list(one.buffers()), list(other.buffers()), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(one), gradients(other), rtol=1e-10, atol=1e-10)


def test_a_frozen_network_gives_the_loss_its_gradients():
    one, loss, y = network().requires_grad_(False), losses.ProxyAnchorLoss(4, D).double(), torch.arange(B) % 4
    backward_in_micro_batches(lambda embeddings: loss(embeddings, y), (one, random(B, F)), micro_batch=3)
    assert loss.proxies.grad.abs().max() > 0 and gradients(one) == [None] * 4


class NumpyDropout(nn.Module):
    def forward(self, x):
        return x * torch.from_numpy(np.random.default_rng().integers(0, 2, x.shape))


def test_other_random_numbers_are_refused():
    one, y, loss = nn.Sequential(network(), NumpyDropout()), torch.arange(B) // 2, losses.SupConLoss()
    with pytest.raises(RuntimeError, match="gives other embeddings the second time"):
        backward_in_micro_batches(lambda embeddings: loss(embeddings, y), (one, random(B, F)), micro_batch=3)


def refused(match, *towers, kind=ValueError, loss=lambda embeddings: embeddings.sum(), micro_batch=3):
    with pytest.raises(kind, match=match):
        backward_in_micro_batches(loss, *towers, micro_batch=micro_batch)


def test_what_does_not_fit_is_refused():
    good = network(), random(B, F)
    refused("micro_batch must be a whole number, at least 1, got 0", good, micro_batch=0)
    refused(r"micro_batch must be a whole number, at least 1, got 2.5", good, micro_batch=2.5)
    refused("no tower is given", kind=TypeError)
    refused(r"as many rows, got \[2, 8\] rows", (network(), (random(B, F), random(2, F))))
    refused(r"as many rows, got \[\] rows", (network(), ("a", "b")))
    refused(r"must give embeddings \(3, D\) of 3 samples, got \(3,\)", (network(1).append(nn.Flatten(0)), random(B, F)))
    refused(r"one number \(\) that depends on the embeddings, got of shape \(8, 6\)", good, loss=lambda e: e)
    refused("that depends on the embeddings, got of shape", good, loss=lambda e: e.detach().sum())
    refused("does not depend on the embeddings of tower 1", good, good, loss=lambda e, other: e.sum())
