"""SuperLoss on losses of samples, against the reference."""

import pytest
import torch

import python_ref
from robustdml_ops.losses import SuperLoss


def losses_of(seed, n=20):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(4).requires_grad_()


def test_running_mean_of_all_losses():
    loss_function, seen = SuperLoss(lam=0.5, reduction="none"), []
    for seed in range(3):
        losses = losses_of(seed, 10 + seed)
        seen.append(losses.detach())
        value, sigma = python_ref.superloss(losses, float(torch.cat(seen).mean()), 0.5)
        ours = loss_function(losses)
        torch.testing.assert_close(ours, value, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(torch.autograd.grad(ours.sum(), losses)[0], sigma, rtol=1e-6, atol=1e-6)
    assert loss_function.running.count == 33


def test_constant_tau():
    losses = losses_of(0)
    value, sigma = python_ref.superloss(losses, 1.5, 0.25)
    ours = SuperLoss(0.25, 1.5)(losses)
    torch.testing.assert_close(ours, value.mean())
    torch.testing.assert_close(torch.autograd.grad(ours, losses)[0], sigma / 20)
    assert not SuperLoss(0.25, 1.5).state_dict()


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 1.0, 0.0]])
def test_nothing_non_finite_enters_the_mean(weights):
    loss_function = SuperLoss(lam=1.0)
    losses = torch.tensor([1.0, torch.inf, 3.0, torch.nan])
    loss_function(losses, sample_weights=None if weights is None else torch.tensor(weights))
    assert (loss_function.running.mean, loss_function.running.count) == (2, 2)
    loss_function.eval()
    loss_function(torch.tensor([9.0]))
    assert loss_function.running.mean == 2


def test_eval_before_any_training_takes_the_batch():
    losses = losses_of(0)
    ours = SuperLoss(1.0).eval()(losses)
    torch.testing.assert_close(
        ours, python_ref.superloss(losses, float(losses.detach().mean()), 1.0)[0].mean(), rtol=1e-6, atol=1e-6
    )


def test_large_losses_leave_the_running_mean_finite():
    loss_function = SuperLoss()
    loss_function(torch.full((20,), 1e38))
    loss_function(torch.tensor([1e200, 3e38], dtype=torch.float64))  # the first is inf in float32
    torch.testing.assert_close(loss_function.running.mean, torch.tensor((20 * 1e38 + 3e38) / 21))
    assert loss_function.running.count == 21
