"""Weights and rows at the ends of their types: the right numbers, or an error that names the argument."""

import pytest
import torch

from robustdml_ops.losses import BSPMLLoss, ContrastiveLoss, MemoryContrastiveLoss, MultiSimilarityLoss
from robustdml_ops.ops import pair_hinge_sum, pair_lse, pair_lse_sum

BACKENDS = ("native", "eager")
LOSSES = {
    "ms": MultiSimilarityLoss,
    "ms-mined": lambda **settings: MultiSimilarityLoss(epsilon=0.1, **settings),
    "contrastive": ContrastiveLoss,
    "contrastive-memory": MemoryContrastiveLoss,
    "bspml": BSPMLLoss,
}
LABELS = torch.arange(24) // 4
SCALES = [
    (torch.float32, 1e9),
    (torch.float32, 1e-30),
    (torch.float32, 1e30),
    (torch.float64, 1e-10),
    (torch.float64, 1e-200),
    (torch.float64, 1e200),
]


def rows(dtype, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(24, 6, generator=generator, dtype=torch.float64)
    return (X * scale).to(dtype).requires_grad_()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("dtype", "scale"), SCALES)
def test_the_scale_of_the_rows_does_not_matter(name, dtype, scale, backend):
    loss = LOSSES[name](backend=backend)
    results = []
    for factor in (scale, 1.0):
        X = rows(dtype, factor)
        value = loss(X, LABELS)
        results.append((value.detach(), torch.autograd.grad(value, X)[0] * factor))
    (value, gradient), (expected, expected_gradient) = results
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(gradient, expected_gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("dtype", "weight"), [(torch.float32, 1e18), (torch.float64, 1e150)])
def test_large_weights_are_right(name, reduction, dtype, weight, backend):
    """A loss is linear in them, BSPML's quadratic."""
    loss = LOSSES[name](reduction=reduction, backend=backend)
    power = 2 if name == "bspml" else 1
    results = []
    for factor in (1.0, weight):
        X = rows(dtype)
        weights = torch.linspace(0.5, 1, 24, dtype=dtype) * factor
        value = loss(X, LABELS, sample_weights=weights)
        gradient = torch.autograd.grad(value.sum(), X)[0]
        results.append([one.detach().double() / factor / factor ** (power - 1) for one in (value, gradient)])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("dtype", "weight"), [(torch.float32, 1e38), (torch.float32, 1e30), (torch.float64, 1e300)])
def test_weights_that_would_overflow_are_named(name, dtype, weight):
    weights = torch.ones(24, dtype=dtype)
    weights[3] = weight
    message = (
        r"sample_weights must be finite and not negative, got \[.*e\+.*\]: at most (1.2e\+18|8.4e\+152) in torch.float"
    )
    with pytest.raises(ValueError, match=message):
        LOSSES[name]()(rows(dtype), LABELS, sample_weights=weights)


@pytest.mark.parametrize("value", [1e38, -1e38, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["positive_scale", "negative_scale", "candidate_weights"])
def test_scales_and_weights_of_the_ops_are_named(name, value):
    X = rows(torch.float32)
    bad = torch.ones(24)
    bad[3] = value
    lse = {"alpha": 2.0, "beta": 50.0, "base": 0.5}
    scales = {"positive_scale": torch.ones(()), "negative_scale": torch.ones(24)}
    message = rf"{name} must be finite and at most 1.2e\+18 in torch.float32, got"
    if name == "candidate_weights":
        with pytest.raises(ValueError, match=message):
            pair_lse(X, LABELS, **lse, candidate_weights=bad)
        return
    with pytest.raises(ValueError, match=message):
        pair_lse_sum(X, LABELS, None, None, **(scales | {name: bad}), **lse)
    with pytest.raises(ValueError, match=message):
        pair_hinge_sum(X, LABELS, None, None, **(scales | {name: bad[3]}), positive_margin=0.9, negative_margin=0.1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 2000.0), (2000.0, 50.0)])
def test_a_set_that_mining_empties_has_the_sum_0(alpha, beta, backend):
    """Anchors without negatives keep no positive, however far the exponents of those would reach."""
    X = rows(torch.float32)
    lse = pair_lse(X, torch.zeros(24).long(), alpha=alpha, beta=beta, base=0.5, epsilon=0.1, backend=backend)
    for sums in lse:
        assert sums.tolist() == [0.0] * 24
    (gradient,) = torch.autograd.grad(lse.positive.sum() + lse.negative.sum(), X)
    assert not gradient.any()
