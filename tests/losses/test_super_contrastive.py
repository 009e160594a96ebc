"""SuperLoss on pairs: against the loop over all pairs, and the distances that it rests on."""

import pytest
import torch

import python_ref
from robustdml_ops.engine.rows.lengths import unit_rows
from robustdml_ops.losses import SuperContrastiveLoss
from robustdml_ops.ops.pair_distances import by_difference, gradient_by_difference, pair_distances


def pairs_by_loop(X, y, weights, pos_margin, neg_margin):
    """Losses of all pairs i ≠ j and the weights of their anchors, of positives and of negatives."""
    unit = torch.nn.functional.normalize(X, dim=1)
    found = {True: [], False: []}
    for i in range(len(X)):
        for j in range(len(X)):
            if i != j:
                d = torch.linalg.vector_norm(unit[i] - unit[j])
                same = bool(y[i] == y[j])
                found[same].append(((d - pos_margin if same else neg_margin - d).clamp(min=0), weights[i]))
    return [map(torch.stack, zip(*found[same], strict=True)) for same in (True, False)]


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_its_loop(weighted):
    """Weights multiply the terms of their anchors."""
    loss_function = SuperContrastiveLoss(0.3, 1.2, 0.2)
    history = ([], [])
    weights = torch.linspace(0.5, 2, 12, dtype=torch.float64).requires_grad_() if weighted else None
    for seed in range(2):
        X, y = batch(12, 3, seed)
        expected = 0
        factors = torch.ones(12, dtype=torch.float64) if weights is None else weights
        for (pairs, of_anchors), past in zip(pairs_by_loop(X, y, factors, 0.3, 1.2), history, strict=True):
            past.append(pairs.detach())
            value, _ = python_ref.superloss(pairs, float(torch.cat(past).mean()), 0.2)
            expected = expected + (value * of_anchors)[pairs > 0].mean()
        ours = loss_function(X, y, sample_weights=weights)
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
        inputs = [X, weights] if weighted else [X]
        gradients = (torch.autograd.grad(loss, inputs) for loss in (ours, expected))
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


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
            monkeypatch.setattr("robustdml_ops.ops.pair_distances._ELEMENTS", elements)
            ours = pair_distances(X)
            error = (ours.double() - expected).detach().abs()
            assert error.max() <= 80 * eps
            assert (error <= 8 * eps * expected)[expected < 0.12].all()
            assert ((expected > 0) & (expected < 0.12)).any()
            torch.testing.assert_close(
                torch.autograd.grad(ours, X, upstream.to(dtype))[0].double(), slope, rtol=0, atol=400 * eps
            )


@pytest.mark.parametrize("elements", [1 << 23, 7 * 30 * 5])
def test_differences_of_all_pairs_as_a_gpu_takes_them(elements, monkeypatch):
    """At once, and by seven rows; of rows of a process, too."""
    monkeypatch.setattr("robustdml_ops.ops.pair_distances._ELEMENTS", elements)
    X = torch.randn(30, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    G = torch.rand(30, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist").square()
    ours = by_difference(X, X)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(by_difference(X[3:20], X), expected[3:20])
    (slope,) = torch.autograd.grad((X[:, None] - X).square().sum(2), X, G)
    torch.testing.assert_close(torch.autograd.grad(ours, X, G)[0], slope)
    torch.testing.assert_close(2 * gradient_by_difference(X.detach(), G + G.t()), slope)


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
