"""Problems of the sums of pairs, for every backend that launches kernels."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch

from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.ops import pair_hinge
from robustdml_ops.ops.pairs.backends import (
    Arithmetic,
    ContrastOptions,
    DistanceLimits,
    HingeOptions,
    LSEOptions,
    PairProblem,
)
from robustdml_ops.ops.pairs.sets import PairSets
from robustdml_ops.ops.pairs.sweep import BACKENDS, pair_sweep

EAGER = BACKENDS["eager"]
FIELDS = ("positive", "negative", "counts", "danchors", "dcandidates", "dcoefficients")


def problems(sets, dtype, m, device="cpu"):
    weights = torch.linspace(0, 1, m, dtype=dtype, device=device)

    def lse(*numbers, **constants):
        return PairProblem(LSEOptions(*numbers), sets, **constants)

    def hinge(*numbers):
        return PairProblem(HingeOptions(*numbers), sets)

    def contrast(form, scale=9.0, bias=0.0, **columns):
        coefficients = torch.tensor([scale, bias], dtype=dtype, device=device)
        return PairProblem(ContrastOptions(form), sets, coefficients=coefficients, **columns)

    columns = {"column_lse": (weights + 12).masked_fill(weights < 0.2, torch.inf), "column_upstream": weights}
    return {
        "all": lse(2.0, 50.0, 0.5),
        "with weights": lse(2.0, 50.0, 0.5, candidate_weights=weights),
        "mined": lse(2.0, 50.0, 0.5, 0.1, candidate_weights=weights),
        "mined with ties": lse(2.0, 2.0, 0.5, 0.5),
        "shifted": lse(2.0, 900.0, 0.5),
        "mined and shifted": lse(2000.0, 50.0, 0.5, 0.07),
        "cosine": hinge(0.7, 0.1, 0.25, -0.5, False),
        "euclidean": hinge(-0.4, -1.4, 0.25, -0.5, True),
        "outside": contrast("outside"),
        "inside": contrast("inside"),
        "each": contrast("each"),
        "sigmoid": contrast("sigmoid", 7.0, -2.0),
        "steep": contrast("inside", 900.0),
        "both ways": contrast("outside", **columns),
    }


PROBLEMS = tuple(problems(None, torch.float32, 1))
# Labels and ids of a sample, and whether ids keep positives.
RELATED = [(3, 0, False), (1, 1, False), (1, 2, True), (2, 1, False)]


def sweep(backend, name, shape, dtype, device, upstream="vector", related=None, hardest=None):
    """Of m candidates, the batch itself (None), the anchors seen "anew", or the anchors and as many more ("first").

    ``related``: (K, I, whether ids keep positives), labels and ids of a sample; None: one label.
    """
    n, m, D = shape
    ties = name == "mined with ties"  # rows of few different cosines, all exact
    random = torch.Generator().manual_seed(0)
    normal = lambda *size: torch.randn(*size, generator=random, dtype=torch.float64)  # noqa: E731
    draw = lambda rows: (normal(rows, 4).sign() / 2 if ties else normal(rows, D)).to(device, dtype)  # noqa: E731
    classes = torch.tensor([ABSENT, -1, 0, 2**40, 3, 4])  # no 32 bits hold them
    K, each, keeps = related or (1, 0, False)
    labels = lambda rows: classes[torch.randint(6, (rows, K), generator=random)].squeeze(1).to(device)  # noqa: E731
    numbers = lambda rows: torch.randint(-2, 5, (rows, each), generator=random).to(device) if each else None  # noqa: E731
    X, y = draw(n), labels(n)
    m, anew, first = {"anew": (n, True, False), "first": (2 * n, False, True)}.get(m, (m, False, False))
    C, z = (None, None) if m is None else (draw(m), None if anew else labels(m))
    if first:
        C[:n], z[:n] = X, y
    ids = (numbers(n), None if m is None else numbers(m))
    problem = problems(PairSets.of(y, z, first, ids, keeps), dtype, m or n, device)[name]
    factors = normal(2, *(() if upstream == "scalar" else (n,))).to(device, dtype)
    want = (False, False) if upstream is None else (True, True, True)
    problem = replace(problem, hardest=hardest)
    return pair_sweep(X, C, problem, tuple(factors), Arithmetic(backend, dtype, dtype), want)


def assert_same_as_eager(backend, name, shape, dtype, device, upstream="vector", related=None):
    """|ours − exact| ≤ 4 · |eager in the same type − exact| + a few roundings.

    Where two candidates share a softmax, the rounding ε of a cosine moves the gradient by up to scale²·ε/4.
    """
    scale = 900.0 if name == "steep" else 0.0
    ours, exact, theirs = (
        sweep(each, name, shape, kind, device, upstream, related)
        for each, kind in ((backend, dtype), (EAGER, torch.float64), (EAGER, dtype))
    )
    roundings = 64 if dtype == torch.float32 else 512  # in float64 the truth is rounded, too
    for field in FIELDS:
        mine, dense, truth = (getattr(result, field) for result in (ours, theirs, exact))
        if truth is None:
            assert mine is None
        elif field == "counts":
            assert torch.equal(mine, truth), name
        else:
            epsilon, tied = torch.finfo(dtype).eps, scale**2 / 4 if field in ("danchors", "dcandidates") else 0
            allowed = 4 * (dense - truth).abs().max() + epsilon * (roundings * (1 + truth.abs().max()) + tied)
            assert (mine - truth).abs().max() <= allowed, (name, field)


def assert_same_hardest(backend, name, shape, dtype, device, related=None):
    """The extrema of the cosines of both sets, to roundings; the sums keep their bits."""
    n, found = shape[0], []
    for each, kind in ((backend, dtype), (EAGER, torch.float64)):
        hardest = torch.tensor([[torch.inf], [-torch.inf]], dtype=kind, device=device).repeat(1, n)
        observed, plain = (
            sweep(each, name, shape, kind, device, related=related, hardest=seen) for seen in (hardest, None)
        )
        assert torch.equal(observed.positive, plain.positive), name
        assert torch.equal(observed.danchors, plain.danchors), name
        found.append(hardest.double())
    torch.testing.assert_close(*found, rtol=0, atol=32 * torch.finfo(dtype).eps, msg=name)


def assert_same_bits_twice(backend, name, shape, device):
    first, second = (sweep(backend, name, shape, torch.float32, device) for _ in range(2))
    for field in FIELDS:
        values = getattr(first, field), getattr(second, field)
        assert values[0] is values[1] is None or torch.equal(*values)


def assert_near_rows_keep_their_distance(backend, shape, types, device):
    """Copies and near duplicates of one row, in several classes, against the eager sums in float64."""
    n, m, D = shape
    random = torch.Generator().manual_seed(0)

    def draw(rows):
        spread = 10.0 ** torch.randint(-9, 0, (rows, 1), generator=random)
        return 1 + spread * torch.randn(rows, D, generator=random, dtype=torch.float64)

    X, C = draw(n).to(types[0]), None if m is None else draw(m).to(types[1])
    y, z = torch.arange(n) % 3, None if m is None else torch.arange(m) % 4
    X[n // 2 :] = X[0] if C is None else C[: n - n // 2]
    dtype = torch.float64 if torch.float64 in types else torch.float32
    sets = PairSets.of(y.to(device), z if z is None else z.to(device))
    problem = PairProblem(HingeOptions(0.0, -3.0, 0.0, 0.0, True), sets)
    X, C = X.to(device), C if C is None else C.to(device)
    upstream = (torch.ones((), dtype=dtype, device=device),) * 2
    ours = pair_sweep(X, C, problem, upstream, Arithmetic(backend, dtype, dtype), (True, True))
    theirs = pair_sweep(X, C, problem, upstream, Arithmetic(EAGER, dtype, dtype), (True, True))
    exact = pair_sweep(
        X.double(), C if C is None else C.double(), problem, None, Arithmetic(EAGER, torch.float64, torch.float64)
    )
    assert torch.equal(ours.counts, exact.counts)
    assert ours.counts[0].any() or D == 1
    # What lies beyond the limit comes from a cosine.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    for field in ("positive", "negative"):
        mine, truth = getattr(ours, field).double(), getattr(exact, field)
        torch.testing.assert_close(mine, truth, rtol=tolerance, atol=tolerance * (m or n))
    for field in ("danchors", "dcandidates"):
        mine, other = getattr(ours, field), getattr(theirs, field)
        assert (mine is None) == (other is None)
        if mine is not None:
            assert torch.isfinite(mine).all()
            # Forces of length 1 between rows at 1e-5 are right to 2 %.
            scale = (m or n) / X.double().norm(dim=1).min()
            assert (mine - other).norm(dim=1).max() <= 0.1 * scale


def assert_means_are_sums_over_terms(backend, euclidean, dtype, device):
    """A batch takes one product for both readings of its cosines: with no pair near, with one, and with many."""
    for near in (0, 1, 16):
        X = torch.randn(32, 5, generator=torch.Generator().manual_seed(near)).to(device, dtype)
        X[:near] = X[32 - near :] + 1e-3 * X[16 : 16 + near]
        sets = PairSets.of(torch.arange(32, device=device) % 4, None)
        margins = (-0.2, -1.2, 0.0, 0.0, True) if euclidean else (0.9, 0.3, 0.0, 0.0, False)
        means, plain = (PairProblem(HingeOptions(*margins, average), sets) for average in (True, False))
        ones = (torch.ones((), dtype=dtype, device=device),) * 2
        ours = pair_sweep(X, None, means, ones, Arithmetic(backend, dtype, dtype), (True, False))
        with_sums, exact = partial(pair_sweep, X.double(), None, plain), torch.float64
        terms = with_sums(None, Arithmetic(EAGER, exact, exact)).terms
        truth = with_sums(tuple(1 / terms), Arithmetic(EAGER, exact, exact), (True, False)).divided(terms)
        for field in ("positive", "negative", "danchors"):
            mine, expected = getattr(ours, field).double(), getattr(truth, field)
            # The force between near rows is right to ε/d.
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-3 / float(terms.min()))


def assert_no_gradient_up_to_the_resolution(backend, device="cpu"):
    """Its direction is rounding. The sum keeps the distance, and beyond the limit the force is of length 1."""
    y = torch.zeros(2, dtype=torch.int64, device=device)
    for products, bank, factor in itertools.product(("highest", "medium"), (False, True), (0.999, 1.001)):
        torch.set_float32_matmul_precision(products)
        distance = factor * DistanceLimits.of(torch.empty(0, device=device)).resolution
        X = torch.tensor([[1.0, 0.0], [1.0, distance]], device=device, requires_grad=True)
        pairs = (X[1:], y[1:], X.detach()[:1], y[:1]) if bank else (X, y)
        margins = {"positive_margin": 0.0, "negative_margin": 3.0, "distance": "euclidean"}
        total = pair_hinge(*pairs, **margins, backend=backend).positive.sum()
        gradient = torch.autograd.grad(total, X)[0][1]
        if factor < 1:
            assert not gradient.any()
        else:
            assert gradient.norm().item() == pytest.approx(1 if bank else 2, rel=0.5)
        assert total.item() == pytest.approx(distance if bank else 2 * distance, rel=1e-3)


def assert_logistic_losses_near_0_keep_their_digits(backend, device):
    """Pairs that are nearly right: of 1 + e^t a float32 has only the first digits of e^t, or none."""
    X = torch.eye(6, device=device).repeat(2, 1)
    sets = PairSets.of(torch.arange(12, device=device) % 6, None)
    for form, scale, bias in (
        ("sigmoid", 28.0, -14.0),
        ("sigmoid", 40.0, -20.0),
        ("each", 16.0, 0.0),
        ("each", 24.0, 0.0),
    ):
        coefficients = torch.tensor([scale, bias], dtype=torch.float64, device=device)
        exact = PairProblem(ContrastOptions(form), sets, coefficients=coefficients)
        ours = pair_sweep(
            X, None, replace(exact, coefficients=coefficients.float()), None, Arithmetic(backend, *(torch.float32,) * 2)
        )
        truth = pair_sweep(X.double(), None, exact, None, Arithmetic(EAGER, *(torch.float64,) * 2))
        torch.testing.assert_close(ours.positive.double(), truth.positive, rtol=1e-5, atol=0)


def assert_a_nan_reaches_the_result(backend, device):
    """On a GPU nobody looks at the values; mining must not pass over them in silence."""
    X = torch.randn(6, 4).to(device)
    X[2] = torch.nan
    sets = PairSets.of(torch.tensor([0, 0, 1, 1, 2, 2], device=device), None)
    for problem in problems(sets, torch.float32, 6, device).values():
        result = pair_sweep(X, None, problem, None, Arithmetic(backend, torch.float32, torch.float32))
        assert torch.isnan(result.positive + result.negative).any()


def assert_a_set_that_mining_empties_has_the_sum_0(backend, dtype, device):
    """Anchors without negatives keep no positive, and e^−shift of those may be 0."""
    X = torch.randn(20, 5).to(device, dtype)
    sets = PairSets.of(torch.zeros(20).long().to(device), None)
    for alpha, beta in ((2000.0, 50.0), (2.0, 2000.0)):
        problem = PairProblem(LSEOptions(alpha, beta, 0.5, 0.1), sets)
        result = pair_sweep(
            X, None, problem, (torch.ones(20).to(X),) * 2, Arithmetic(backend, dtype, dtype), (True, False)
        )
        assert not result.positive.any() and not result.negative.any() and not result.danchors.any()
