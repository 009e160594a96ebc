"""Weights and rows at the ends of their types: the right numbers, or an error that names the argument."""

import pytest
import torch

from robustdml_ops.losses import BSPMLLoss, ContrastiveLoss, MemoryContrastiveLoss, MultiSimilarityLoss
from robustdml_ops.ops import pair_hinge_sum, pair_lse, pair_lse_sum

LOSSES = {
    "ms": MultiSimilarityLoss,
    "ms-mined": lambda **settings: MultiSimilarityLoss(epsilon=0.1, **settings),
    "contrastive": ContrastiveLoss,
    "contrastive-memory": MemoryContrastiveLoss,
    "bspml": BSPMLLoss,
}
LABELS = torch.arange(24) // 4


def rows(dtype):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(24, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


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
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


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
