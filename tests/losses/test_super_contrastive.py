"""SuperLoss on pairs: against the loop over all pairs, and the distances that it rests on."""

import pytest
import torch
from pytorch_metric_learning import losses as pml

import python_ref
from robustdml_ops.engine.rows.lengths import unit_rows
from robustdml_ops.losses import SuperContrastiveLoss
from robustdml_ops.ops.pairs.distances import pair_distances


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


def test_it_is_its_loop():
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


def batch(B, D, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(B, D, generator=generator, dtype=torch.float64).to(dtype)
    return X.requires_grad_(), torch.randint(max(1, B // 4), (B,), generator=generator)


@pytest.mark.parametrize(("B", "D"), [(13, 3), (37, 129)])
def test_a_weight_of_0_is_an_absent_sample(B, D):
    """In the pairs, their means and both running means; the other weights multiply the terms of their anchors."""
    X, y = batch(B, D)
    weights = torch.linspace(0.5, 2, B, dtype=torch.float64)
    weights[::3] = 0
    kept = weights > 0
    ours, dropped = (SuperContrastiveLoss(0.3, 1.2, 0.2) for _ in range(2))
    mine, other = ours(X, y, sample_weights=weights), dropped(X[kept], y[kept], sample_weights=weights[kept])
    # The running means, and so τ, are float32.
    torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
    gradients = (torch.autograd.grad(loss, X)[0] for loss in (mine, other))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    for of_mine, of_other in ((ours.positive, dropped.positive), (ours.negative, dropped.negative)):
        assert of_mine.count == of_other.count
        torch.testing.assert_close(of_mine.mean, of_other.mean)


def test_weights_multiply_the_terms_of_their_anchors():
    X, y = batch(9, 4)
    weights = torch.linspace(0.5, 2, 9, dtype=torch.float64, requires_grad=True)
    expected = 0
    own = [weights[i] for i in range(9) for j in range(9) if i != j and y[i] == y[j]]
    other = [weights[i] for i in range(9) for j in range(9) if y[i] != y[j]]
    for pairs, of_pairs in zip(pairs_by_loop(X, y, 0.0, 1.2), (own, other), strict=True):
        value, _ = python_ref.superloss(pairs, float(pairs.detach().mean()), 0.5)
        expected = expected + (value * torch.stack(of_pairs))[pairs > 0].mean()
    ours = SuperContrastiveLoss(0.0, 1.2, 0.5)(X, y, sample_weights=weights)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    gradients = (torch.autograd.grad(loss, [X, weights]) for loss in (ours, expected))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_a_batch_without_any_sample_left():
    X, y = batch(6, 3)
    loss = SuperContrastiveLoss()(X, y, sample_weights=torch.zeros(6))
    assert loss == 0
    assert not torch.autograd.grad(loss, X)[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("D", [1, 2, 65, 513])
def test_equal_vectors_have_distance_0(D, dtype):
    X = torch.randn(40, D, generator=torch.Generator().manual_seed(D), dtype=torch.float64).to(dtype)
    X[20:] = X[:20]
    distances = pair_distances(unit_rows(X.requires_grad_()))
    assert not distances.diagonal().any()
    assert not distances[:20, 20:].diagonal().any()
    torch.testing.assert_close(distances, distances.t())
    (gradient,) = torch.autograd.grad(distances.sum(), X)
    assert torch.isfinite(gradient).all()
    y = torch.arange(40) % 20
    loss = SuperContrastiveLoss()
    loss(X, y)
    assert loss.positive.mean == 0  # all positives are equal vectors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("D", [2, 65, 513])
def test_near_vectors_have_their_distance_and_gradient(D, dtype, monkeypatch):
    """Of rows as they are given, to some ε; also where the differences are made a chunk at a time."""
    eps = torch.finfo(dtype).eps
    for step in (1e-1, 1e-2, 1e-4, 1e2 * eps):
        X = unit_rows(torch.randn(30, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
        near = 0.5 * step / D**0.5 * torch.randn(30, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        X = unit_rows(X[torch.arange(30) % 3] + near).to(dtype).requires_grad_()
        exact = X.detach().double().requires_grad_()
        squared = (exact[:, None] - exact).square().sum(2)
        itself = squared == 0
        expected = torch.where(itself, 0, squared.masked_fill(itself, 1).sqrt())
        upstream = torch.rand(30, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        (slope,) = torch.autograd.grad(expected, exact, upstream)
        for elements in (1 << 23, 7 * D):
            monkeypatch.setattr("robustdml_ops.ops.pairs.distances._ELEMENTS", elements)
            ours = pair_distances(X)
            error = (ours.double() - expected).detach().abs()
            assert error.max() <= 80 * eps
            assert (error <= 8 * eps * expected)[expected < 0.12].all()
            assert ((expected > 0) & (expected < 0.12)).any()
            torch.testing.assert_close(
                torch.autograd.grad(ours, X, upstream.to(dtype))[0].double(), slope, rtol=0, atol=400 * eps
            )


def test_second_derivatives_of_distances():
    X = unit_rows(torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    X = (X[torch.arange(6) % 3] * (1 + 1e-2 * torch.arange(6)[:, None])).requires_grad_()
    upper = torch.triu_indices(6, 6, 1)
    assert torch.autograd.gradgradcheck(lambda X: pair_distances(X)[upper[0], upper[1]], X)


def test_a_zero_row_is_at_distance_1():
    """As pytorch-metric-learning has it, which normalises a zero row to itself."""
    X = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert torch.equal(pair_distances(unit_rows(X)), expected)


def test_what_is_not_served_is_refused():
    X, y = batch(8, 3)
    plain = SuperContrastiveLoss()(X, y)
    assert torch.equal(SuperContrastiveLoss()(X, y, None, None, None), plain)
    pairs = tuple(torch.zeros(1, dtype=torch.int64) for _ in range(4))
    for given in ({"indices_tuple": pairs}, {"ref_emb": X}, {"ref_labels": y}):
        with pytest.raises(ValueError, match=f"{next(iter(given))} must be None, got (t|T).* all pairs of one batch"):
            SuperContrastiveLoss()(X, y, **given)


def test_bad_input():
    for lam in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="lam must be positive and finite"):
            SuperContrastiveLoss(lam=lam)
    with pytest.raises(ValueError, match="pos_margin must be finite"):
        SuperContrastiveLoss(float("nan"))
    with pytest.raises(ValueError, match=r"embeddings\[1\] has NaN or inf"):
        SuperContrastiveLoss()(torch.tensor([[1.0], [torch.nan]]), torch.tensor([0, 1]))
    for weights in (torch.ones(3), -torch.ones(2), torch.full((2,), torch.nan)):
        with pytest.raises(ValueError, match="sample_weights"):
            SuperContrastiveLoss()(torch.ones(2, 3), torch.tensor([0, 1]), sample_weights=weights)
