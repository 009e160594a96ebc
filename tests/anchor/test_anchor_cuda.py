"""The anchor log-sum-exp in native CUDA against eager: on the GPU where there is one, in emulation everywhere."""

import pytest
import torch

from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.ops.anchor.problem import AnchorChunk, AnchorProblem, ConfidenceSets
from robustdml_ops.ops.anchor.sweep import BACKENDS

NATIVE, EAGER = BACKENDS["native"], BACKENDS["eager"]

BATCHES = [1, 31, 33, 257, 5000]


def make_problem(B, C, dtype, device, kind, alpha=32.0, anchor=False, absent=0.1):
    generator = torch.Generator().manual_seed(B + C)
    positive_bias = 0.1 * alpha + torch.randn(B, generator=generator, dtype=dtype)
    negative_bias = 0.1 * alpha + torch.randn(B, generator=generator, dtype=dtype)
    gone = torch.rand(B, generator=generator) < absent
    positive_bias[gone] = negative_bias[gone] = -torch.inf
    anchor_bias = torch.randn(C, generator=generator, dtype=dtype).to(device) if anchor else None
    if kind == "labels":
        sets = LabelSets.of(torch.randint(C, (B,), generator=generator).to(device))
    elif kind == "factors":
        hidden, weight = torch.randn(B, 5, generator=generator), torch.randn(C, 5, generator=generator)
        bias = torch.full((C,), -2.0)
        sets = ConfidenceSets(100.0, 0.1, hidden=hidden.to(device), weight=weight.to(device), bias=bias.to(device))
    else:
        confidences = torch.rand(B, C, generator=generator) ** 4
        if kind == "classes apart":
            confidences = confidences.t().contiguous().t()
        sets = ConfidenceSets(100.0, 0.1, confidences=confidences.to(device))
    return AnchorProblem(alpha, positive_bias.to(device), negative_bias.to(device), anchor_bias, sets)


def cast(problem, dtype):
    """The problem in another compute type; the sets follow it by themselves."""
    to = lambda tensor: None if tensor is None else tensor.to(dtype)  # noqa: E731
    biases = (to(problem.positive_bias), to(problem.negative_bias), to(problem.anchor_bias))
    return AnchorProblem(problem.alpha, *biases, problem.sets)


def run(backend, problem, S, first, upstream):
    """One chunk in place of a copy of S; every buffer that is only written starts as NaN."""
    rows, B = S.shape
    options = {"dtype": S.dtype, "device": S.device}
    upstream = None if upstream is None else upstream.to(S.dtype)
    dbias = torch.ones(2, B, **options)
    chunk = AnchorChunk(
        S=S.clone(),
        first=first,
        upstream_positive=None if upstream is None else upstream[0],
        upstream_negative=None if upstream is None else upstream[1],
        lse_positive=torch.empty(rows, **options),
        lse_negative=torch.empty(rows, **options),
        dpositive_bias=dbias[0] if upstream is not None else None,
        dnegative_bias=dbias[1] if upstream is not None else None,
    )
    backend.anchor_lse(chunk, problem)
    return chunk.lse_positive, chunk.lse_negative, *(() if upstream is None else (chunk.S, dbias[0] - 1, dbias[1] - 1))


def check(problem, S, first, upstream):
    """Ours may be a few times as far from float64 as eager PyTorch in the same type is."""
    ours = run(NATIVE, problem, S, first, upstream)
    eager = run(EAGER, problem, S, first, upstream)
    exact = run(EAGER, cast(problem, torch.float64), S.double(), first, upstream)
    eps = torch.finfo(S.dtype).eps
    for name, mine, theirs, truth in zip(
        ("lse_positive", "lse_negative", "dS", "dpositive_bias", "dnegative_bias"), ours, eager, exact, strict=False
    ):
        assert mine.isfinite().all(), name
        allowed = 4 * (theirs - truth).abs().max() + 8 * eps * (1 + truth.abs().max())
        assert (mine - truth).abs().max() <= allowed, name


def similarities(rows, B, dtype, device, seed=0):
    S = 0.3 * torch.randn(rows, B, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return S.clamp(-1, 1).to(dtype).to(device)


def upstreams(kind, rows, device):
    if kind == "none":
        return None
    shape = (2,) if kind == "scalar" else (2, rows)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)


@pytest.mark.parametrize("kind", ["labels", "classes together", "classes apart", "factors"])
@pytest.mark.parametrize("B", BATCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_eager(device, dtype, B, kind):
    rows, first, C = (7, 3, 12) if B == 5000 else (67, 5, 80)
    problem = make_problem(B, C, dtype, device, kind, anchor=True)
    check(problem, similarities(rows, B, dtype, device), first, upstreams("vector", rows, device))


@pytest.mark.parametrize("kind", ["labels", "classes together", "factors"])
@pytest.mark.parametrize("upstream", ["none", "scalar", "vector"])
@pytest.mark.parametrize("alpha", [2.0, 32.0, 500.0])
def test_alphas_and_upstreams(device, alpha, upstream, kind):
    problem = make_problem(129, 40, torch.float32, device, kind, alpha=alpha)
    check(problem, similarities(33, 129, torch.float32, device), 2, upstreams(upstream, 33, device))


def test_all_absent(device):
    """Weights of zero alone: no exponent is finite, both sums are empty."""
    problem = make_problem(40, 9, torch.float32, device, "labels", absent=2.0)
    lse_positive, lse_negative, dS, *dbias = run(
        NATIVE, problem, similarities(9, 40, torch.float32, device), 0, upstreams("vector", 9, device)
    )
    for result in (lse_positive, lse_negative, dS, *dbias):
        assert (result == 0).all()


@pytest.mark.parametrize("kind", ["labels", "classes together"])
@pytest.mark.parametrize("B", [257, 5000])
def test_same_bits_twice(device, B, kind):
    problem = make_problem(B, 70, torch.float32, device, kind)
    S, upstream = similarities(70, B, torch.float32, device), upstreams("vector", 70, device)
    first, second = (run(NATIVE, problem, S, 0, upstream) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
