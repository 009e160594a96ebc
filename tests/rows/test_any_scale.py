"""Rows of every length that a type has, in every op and on every backend of the CPU."""

import pytest
import scales
import torch

from robustdml_ops.losses import SoftTripleLoss, SuperContrastiveLoss
from robustdml_ops.losses.soft_triple import center_spread
from robustdml_ops.ops import AnchorBiases, LabelSets, anchor_loss, class_lse, pair_lse, similarity

EVERY_SCALE = [pytest.param(*case, marks=() if case in scales.ENDS else pytest.mark.nightly) for case in scales.SCALES]


@pytest.mark.parametrize(("dtype", "scale"), EVERY_SCALE, ids=str)
@pytest.mark.parametrize("name", scales.OPS)
def test_values_and_gradients(name, dtype, scale, backend, small_chunks):
    for which in scales.WHICH:
        scales.check(name, dtype, scale, which, backend, columns=which in ("both", "proxies"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_derivatives(dtype):
    """Of 1 / length²: of rows whose gradient's gradient is within the type."""
    scale = 2.0**-50 if dtype == torch.float32 else 2.0**-450
    X, P, labels = torch.randn(4, 6, dtype=dtype), torch.randn(5, 6, dtype=dtype), torch.arange(4)
    results = []
    for factor in (1.0, scale):
        x = (X * factor).requires_grad_()
        for value in (class_lse(x, P, labels, scale=3.0).lse.sum(), similarity(x, P).square().sum()):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            (second,) = torch.autograd.grad((gradient * X).sum(), x)
            results.append(second * factor * factor)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(results[2:], results[:2], rtol=tolerance, atol=tolerance)


def test_second_derivatives_beside_rows_of_zeros():
    X, P, weights = (torch.randn(*shape, dtype=torch.float64) for shape in ((4, 6), (5, 6), (4, 5)))
    X[1], P[2] = 0, 0
    rows, columns = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 3, 4])
    found = []
    for x, p, w in ((X, P, weights), (X[rows], P[columns], weights[rows][:, columns])):
        given = x.clone().requires_grad_(), p.clone().requires_grad_()
        first = torch.autograd.grad((w * similarity(*given)).sum(), given, create_graph=True)
        found.append((*first, *torch.autograd.grad(sum(one.square().sum() for one in first), given)))
    for whole, without, kept in zip(*found, (rows, columns) * 2, strict=True):
        torch.testing.assert_close(whole, torch.zeros_like(whole).index_copy(0, kept, without), rtol=1e-12, atol=1e-12)


def beyond(op, backend):
    """A gradient of 1e3 in the direction of a row of length 1e-37, beside rows of length 1."""
    X, P, labels = torch.randn(4, 6), torch.randn(5, 6), torch.arange(4)
    X = X.requires_grad_()
    short = P.mul(torch.tensor([1, 1, 1e-37, 1, 1])[:, None]).requires_grad_()
    if op == "class_lse":
        return class_lse(X, short, labels, scale=1e4, backend=backend).lse.sum()
    if op == "anchor_loss":
        zeros, one = torch.zeros(4), torch.full((), 1e4)
        return anchor_loss(
            X, short, LabelSets.of(labels), AnchorBiases(zeros, zeros), one, one, alpha=1.0, backend=backend
        )
    if op == "pair_lse":
        return 1e4 * pair_lse(short, torch.arange(5) % 2, alpha=1.0, beta=1.0, base=0.0, backend=backend).positive.sum()
    if op == "pair_lse with others":
        sums = pair_lse(X, labels, short, torch.arange(5), alpha=1.0, beta=1.0, base=0.0, backend=backend)
        return 1e4 * sums.negative.sum()
    return 1e4 * similarity(X, short, backend=backend).sum()


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("class_lse", "proxies"),
        ("anchor_loss", "proxies"),
        ("pair_lse", "embeddings"),
        ("pair_lse with others", "candidates"),
        ("similarity", "proxies"),
    ],
)
def test_gradient_beyond_the_type_is_an_error(op, name, backend):
    with pytest.raises(ValueError, match=rf"the gradient of {name}\[2\] is beyond torch.float32: .* \d\.\de-37"):
        beyond(op, backend).backward()


def test_upstream_that_is_not_finite_is_a_loss_scalers_affair():
    X = torch.randn(4, 6)
    X[1] *= 1e-30
    X.requires_grad_()
    (similarity(X, torch.randn(5, 6)) * torch.inf).sum().backward()
    assert not X.grad.isfinite().all()


@pytest.mark.parametrize(("dtype", "scale"), EVERY_SCALE, ids=str)
def test_a_loss_that_holds_unit_rows(dtype, scale):
    X, results = torch.randn(16, 8, dtype=dtype), []
    for factor in (1.0, scale):
        x = (X * factor).requires_grad_()
        loss = SuperContrastiveLoss()(x, torch.arange(16) // 2) / 64
        loss.backward()
        root = factor**0.5
        results.append((loss.detach(), x.grad.double() * root * root))
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "scale"), EVERY_SCALE, ids=str)
def test_center_spread(dtype, scale):
    centers = torch.randn(4, 3, 8, dtype=dtype)
    factors = torch.ones(4, 3, 1, dtype=dtype)
    factors[1], factors[2, 0] = scale, scale
    values = []
    for factor in (torch.ones_like(factors), factors):
        c = (centers * factor).requires_grad_()
        value = center_spread(c, len(c)) / 64
        value.backward()
        root = factor.double().sqrt()
        values.append((value.detach(), c.grad.double() * root * root))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(values[1], values[0], rtol=tolerance, atol=tolerance)
    loss_function = SoftTripleLoss(4, 8, 3, regularizer_weight=0.2).to(dtype)
    with torch.no_grad():
        loss_function.fc.mul_(scale)
    loss_function(torch.randn(5, 8, dtype=dtype) * 2.0**-20, torch.arange(5) % 4).mul(2.0**-14).backward()
    assert loss_function.fc.grad.isfinite().all()
