"""SuperLoss on losses of samples and of pairs, against the reference."""

import pytest
import torch
from pytorch_metric_learning import losses as pml

import python_ref
from robustdml_ops.losses import SuperContrastiveLoss, SuperLoss


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


def test_nothing_non_finite_enters_the_mean():
    loss_function = SuperLoss(lam=1.0)
    loss_function(torch.tensor([1.0, torch.inf, 3.0]))
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


def pairs_by_loop(X, y, pos_margin, neg_margin):
    """Losses of all pairs i ≠ j, positives and negatives."""
    unit = torch.nn.functional.normalize(X, dim=1)
    found = {True: [], False: []}
    for i in range(len(X)):
        for j in range(len(X)):
            if i != j:
                d = torch.linalg.vector_norm(unit[i] - unit[j])
                same = bool(y[i] == y[j])
                found[same].append((d - pos_margin if same else neg_margin - d).clamp(min=0))
    return [torch.stack(found[same]) for same in (True, False)]


def test_super_contrastive_is_its_loop():
    loss_function = SuperContrastiveLoss(0.3, 1.2, 0.2)
    history = ([], [])
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(12, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        y = torch.randint(4, (12,), generator=generator)
        expected = 0
        for pairs, past in zip(pairs_by_loop(X, y, 0.3, 1.2), history, strict=True):
            past.append(pairs.detach())
            value, _ = python_ref.superloss(pairs, float(torch.cat(past).mean()), 0.2)
            expected = expected + value[pairs > 0].mean()
        ours = loss_function(X, y)
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
        gradients = (torch.autograd.grad(loss, X)[0] for loss in (ours, expected))
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


def test_large_lambda_is_the_contrastive_loss():
    """σ is 1: the gradient is that of pytorch-metric-learning's loss."""
    X = torch.randn(16, 5, dtype=torch.float64, requires_grad=True)
    y = torch.arange(16) // 4
    ours, theirs = SuperContrastiveLoss(lam=1e12)(X, y), pml.ContrastiveLoss()(X, y)
    torch.testing.assert_close(*(torch.autograd.grad(loss, X)[0] for loss in (ours, theirs)), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("labels", [[], [0], [0, 0, 0, 0], [0, 1, 2, 3]])
def test_batches_without_pairs_of_a_kind(labels):
    X = torch.ones(len(labels), 3, requires_grad=True)  # and all distances 0
    loss = SuperContrastiveLoss()(X, torch.tensor(labels, dtype=torch.int64))
    assert torch.isfinite(loss)
    loss.backward()
    assert torch.isfinite(X.grad).all()


def test_bad_input():
    for build in (SuperLoss, lambda lam: SuperContrastiveLoss(lam=lam)):
        for lam in (0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="lam must be positive and finite"):
                build(lam)
    with pytest.raises(ValueError, match="reduction='sum'"):
        SuperLoss(reduction="sum")
    with pytest.raises(ValueError, match=r"embeddings\[1\] has NaN or inf"):
        SuperContrastiveLoss()(torch.tensor([[1.0], [torch.nan]]), torch.tensor([0, 1]))
