"""Euclidean hinges of rows that agree, or almost: √(2 − 2s) has nothing left of their distance."""

import mpmath
import pytest
import torch

from robustdml_ops.ops import pair_hinge, pair_hinge_sum
from robustdml_ops.ops.pairs.backends import DistanceLimits
from tests.pairs.cases import assert_no_gradient_up_to_the_resolution

# Σ d over all positives, Σ (3 − d) over all negatives, and how many d are above 0.
SUMS = {"positive_margin": 0.0, "negative_margin": 3.0, "distance": "euclidean"}


def hinge(X, y, *others, backend, **margins):
    return pair_hinge(X, y, *others, **{**SUMS, **margins}, backend=backend)


def exact_distance(p, q):
    """Of the directions of two rows, to 60 digits."""
    with mpmath.workdps(60):
        u, v = ([mpmath.mpf(float(value)) for value in row] for row in (p, q))
        u_norm, v_norm = (mpmath.sqrt(mpmath.fsum(value**2 for value in row)) for row in (u, v))
        return float(mpmath.sqrt(mpmath.fsum((a / u_norm - b / v_norm) ** 2 for a, b in zip(u, v, strict=True))))


def near_rows(relative, D, dtype, seed=0):
    """Two rows at about this distance, their lengths apart."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(D, generator=generator, dtype=torch.float64)
    step = torch.randn(D, generator=generator, dtype=torch.float64)
    step -= step @ p / (p @ p) * p
    return torch.stack([p, 1.5 * (p + relative * p.norm() * step / step.norm())]).to(dtype)


@pytest.mark.parametrize(("D", "relative"), [(2, 3e-1), (7, 1e-1), (128, 1e-2), (700, 1e-4), (7, 1e-5), (128, 1e-7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_duplicates_keep_their_distance(dtype, relative, D, backend):
    """As the docstring says; the rows are what they are after rounding, so the truth is theirs."""
    rows = near_rows(relative, D, dtype)
    truth = exact_distance(*rows)
    found = hinge(rows, torch.zeros(2, dtype=torch.int64), backend=backend).positive.double()
    tolerance = 3e-5 if dtype == torch.float32 else 1e-8
    assert found == pytest.approx(truth, rel=tolerance, abs=1e-14)
    negatives = hinge(rows, torch.tensor([0, 1]), negative_margin=2 * truth, backend=backend).negative.double()
    assert negatives == pytest.approx(truth, rel=4 * tolerance, abs=1e-14)


def test_a_large_batch_of_copies(backend):
    """More than a chunk of anchors, more than a block of candidates: every copy at distance 0, no pair lost."""
    X, y = torch.randn(1500, 16).repeat(2, 1), torch.arange(1500).repeat(2)
    found = hinge(X, y, backend=backend)
    assert not found.positive.any()
    assert not found.positive_count.any()
    assert (found.negative_count == 2998).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_vectors_have_no_gradient(weighted, dtype, backend):
    X = torch.randn(1, 5, dtype=dtype).repeat(6, 1) * torch.tensor([1, 1, 2, 4, 1, 0.5], dtype=dtype)[:, None]
    X.requires_grad_()
    y, one = torch.arange(6) // 3, torch.ones((), dtype=dtype)
    if weighted:
        total = pair_hinge_sum(X, y, None, None, one, one, **SUMS, backend=backend)
    else:
        total = sum(part.sum() for part in hinge(X, y, backend=backend)[:2])
    assert total == 6 * 3 * 3  # negatives alone, at distance 0
    assert not torch.autograd.grad(total, X)[0].any()


@pytest.mark.parametrize("relative", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_force_between_near_vectors(dtype, relative, backend):
    """Of length 1 at any distance d. Rounding takes ε/d of it, and where d comes from a cosine ε/d²."""
    rows = near_rows(relative, 12, dtype).requires_grad_()
    ours = torch.autograd.grad(hinge(rows, torch.zeros(2, dtype=torch.int64), backend=backend).positive.sum(), rows)[0]
    exact = rows.detach().double().requires_grad_()
    u, v = torch.nn.functional.normalize(exact)
    truth = torch.autograd.grad(2 * (u - v).norm(), exact)[0]
    error = (ours - truth).norm(dim=1) / truth.norm(dim=1)
    far = relative > limits(dtype).near
    assert error.max() < 4 * torch.finfo(dtype).eps / relative ** (2 if far else 1)


@pytest.mark.usefixtures("exact_products")
def test_distances_up_to_the_resolution_have_no_gradient(backend):
    assert_no_gradient_up_to_the_resolution(backend)


def test_second_derivatives_of_near_vectors(backend):
    """Of the force above: where near and far pairs, and equal ones, meet in a batch."""
    X = torch.cat([near_rows(1e-5, 6, torch.float64), torch.randn(3, 6, dtype=torch.float64)])
    X = torch.cat([X, X[2:3]]).requires_grad_()  # the last is a positive of its copy
    y, direction = torch.tensor([0, 0, 0, 1, 1, 0]), torch.randn(6, 6, dtype=torch.float64)
    results = []
    for ours in (True, False):
        if ours:
            found = hinge(X, y, backend=backend)
            value = found.positive.sum() + found.negative.sum()
        else:
            U = torch.nn.functional.normalize(X)
            i, j = (torch.cdist(U, U).detach() > 1e-12).nonzero(as_tuple=True)
            d = (U[i] - U[j]).norm(dim=1)
            value = torch.where(y[i] == y[j], d, 3 - d).sum()
        gradient = torch.autograd.grad(value, X, create_graph=True)[0]
        results.append((value.detach(), gradient.detach(), torch.autograd.grad((gradient * direction).sum(), X)[0]))
    for mine, truth in zip(*results, strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-6, atol=1e-6 * float(truth.abs().max()))


def limits(dtype):
    return DistanceLimits.of(torch.empty(0, dtype=dtype))


@pytest.mark.usefixtures("exact_products")
def test_less_exact_products_have_wider_limits():
    """bfloat16 or TF32 in the products of float32 leave fewer digits of a cosine."""
    exact = limits(torch.float32)
    torch.set_float32_matmul_precision("medium")
    coarse = limits(torch.float32)
    assert coarse == limits(torch.bfloat16)
    assert limits(torch.float64).near < exact.near < coarse.near
    assert limits(torch.float64).resolution < exact.resolution < coarse.resolution
