"""The weighted informative batch loss of BSPML against its reference."""

import pytest
import torch
from cases import CPU_BACKENDS, random_matrix
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_ref.bspml import weighted_batch_loss
from robustdml_ops.losses import BSPMLLoss, MultiSimilarityLoss


def batch(B, D, classes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    X, labels = random_matrix(B, D, generator, classes)
    weights = torch.rand(B, generator=generator, dtype=torch.float64)
    weights[::3] = 0
    return X.to(dtype).requires_grad_(), labels, weights.to(dtype)


def compare(ours, theirs, X, tolerance=1e-11):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    upstream = torch.linspace(0.5, 2.0, ours.numel(), dtype=ours.dtype).reshape(ours.shape)
    gradients = [torch.autograd.grad(loss, X, upstream)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    B=st.integers(1, 40),
    D=st.integers(1, 20),
    classes=st.integers(1, 12),
    epsilon=st.floats(0.01, 0.4),  # at 0 equal similarities lie on the edge, where rounding decides
    reduction=st.sampled_from(["mean", "none"]),
    backend=st.sampled_from(CPU_BACKENDS),
    seed=st.integers(0, 2**16),
)
def test_matches_the_reference(B, D, classes, epsilon, reduction, backend, seed):
    X, labels, weights = batch(B, D, classes, seed)
    loss = BSPMLLoss(3, 40, 0.8, epsilon, reduction=reduction, backend=backend)
    theirs = weighted_batch_loss(X, labels, weights, 3, 40, 0.8, epsilon)
    compare(loss(X, labels, sample_weights=weights), theirs if reduction == "none" else theirs.mean(), X)


def test_zero_weights_may_be_left_out_altogether():
    X, labels, weights = batch(30, 6, 4)
    kept = weights > 0
    ours = BSPMLLoss(exclude_zero_weights=True, reduction="none")(X, labels, sample_weights=weights)
    theirs = torch.zeros_like(weights).masked_scatter(kept, weighted_batch_loss(X[kept], labels[kept], weights[kept]))
    compare(ours, theirs, X)
    as_printed = BSPMLLoss(reduction="none")(X, labels, sample_weights=weights)
    assert ((as_printed - ours).abs() > 1e-3).any()
    assert not as_printed[~kept].any()


def test_without_weights_it_is_mined_multi_similarity():
    X, labels, weights = batch(30, 6, 4)
    for given_weights in (None, torch.ones_like(weights)):
        plain = MultiSimilarityLoss(2, 50, 1.0, epsilon=0.1)(X, labels)
        compare(BSPMLLoss()(X, labels, sample_weights=given_weights), plain, X)


def test_float32_is_as_good_as_the_reference_in_float32():
    X, labels, weights = batch(130, 48, 30, dtype=torch.float32)
    exact = weighted_batch_loss(X.double(), labels, weights.double(), epsilon=0.0517).mean()
    theirs = weighted_batch_loss(X, labels, weights, epsilon=0.0517).mean()
    ours = BSPMLLoss(epsilon=0.0517)(X, labels, sample_weights=weights)
    for mine, dense, truth in (
        (ours, theirs, exact),
        [torch.autograd.grad(loss, X)[0] for loss in (ours, theirs, exact)],
    ):
        assert (mine - truth).abs().max() <= 4 * (dense - truth).abs().max() + 1e-6 * truth.abs().max()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_nothing_to_learn_is_a_connected_zero(reduction):
    X = torch.zeros(0, 4, requires_grad=True)
    loss = BSPMLLoss(reduction=reduction)(X, torch.zeros(0, dtype=torch.int64)).sum()
    loss.backward()
    assert loss == 0
    assert X.grad.shape == (0, 4)
    X, labels, weights = batch(9, 4, 3)
    loss = BSPMLLoss(reduction=reduction)(X, labels, sample_weights=0 * weights).sum()
    loss.backward()
    assert loss == 0
    assert not X.grad.any()


def test_weights_are_constants():
    X, labels, weights = batch(9, 4, 3)
    weights.requires_grad_()
    BSPMLLoss()(X, labels, sample_weights=weights).backward()
    assert weights.grad is None


def test_bad_input():
    X, labels, weights = batch(9, 4, 3)
    with pytest.raises(ValueError, match="sample_weights must be finite and not negative"):
        BSPMLLoss()(X, labels, sample_weights=weights - 1)
    with pytest.raises(ValueError, match="alpha must be positive"):
        BSPMLLoss(alpha=0)
    with pytest.raises(ValueError, match="epsilon must be finite"):
        BSPMLLoss(epsilon=float("nan"))
    with pytest.raises(ValueError, match="reduction='sum'"):
        BSPMLLoss(reduction="sum")
