"""The native CUDA epilogues against eager PyTorch: on the GPU where there is one, and in emulation everywhere."""

import pytest
import torch

from robustdml_ops.engine import eager as epilogue_eager
from robustdml_ops.engine import native as epilogue_native
from robustdml_ops.engine.native import module
from robustdml_ops.engine.pairs import PairChunk, PairHingeProblem, PairLSEProblem, PairSets
from robustdml_ops.engine.problem import AnchorChunk, AnchorProblem, ConfidenceSets, LabelSets

ELEMENTS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
BATCHES = [1, 31, 33, 257, 5000]


def poisoned(*shape, dtype, device):
    return torch.full(shape, torch.nan, dtype=dtype, device=device)


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


def run(epilogue, problem, S, first, upstream):
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
        lse_positive=poisoned(rows, **options),
        lse_negative=poisoned(rows, **options),
        dpositive_bias=dbias[0] if upstream is not None else None,
        dnegative_bias=dbias[1] if upstream is not None else None,
        V=poisoned(rows, 1, **options),
        inverse_norm=poisoned(rows, **options),
    )
    epilogue.anchor_lse(chunk, problem)
    return chunk.lse_positive, chunk.lse_negative, *(() if upstream is None else (chunk.S, dbias[0] - 1, dbias[1] - 1))


def check(problem, S, first, upstream):
    """Ours may be a few times as far from float64 as eager PyTorch in the same type is."""
    ours = run(epilogue_native, problem, S, first, upstream)
    eager = run(epilogue_eager, problem, S, first, upstream)
    exact = run(epilogue_eager, cast(problem, torch.float64), S.double(), first, upstream)
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
        epilogue_native, problem, similarities(9, 40, torch.float32, device), 0, upstreams("vector", 9, device)
    )
    for result in (lse_positive, lse_negative, dS, *dbias):
        assert (result == 0).all()


@pytest.mark.parametrize("kind", ["labels", "classes together"])
@pytest.mark.parametrize("B", [257, 5000])
def test_same_bits_twice(device, B, kind):
    problem = make_problem(B, 70, torch.float32, device, kind)
    S, upstream = similarities(70, B, torch.float32, device), upstreams("vector", 70, device)
    first, second = (run(epilogue_native, problem, S, 0, upstream) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


# float64 rows need float64 results.
PAIRS = [(P, U) for P in ELEMENTS for U in ELEMENTS if torch.float64 not in (P, U) or U is torch.float64]


@pytest.mark.parametrize(("P_dtype", "U_dtype"), PAIRS, ids=str)
def test_rows(device, P_dtype, U_dtype):
    compute = torch.float64 if U_dtype == torch.float64 else torch.float32
    generator = torch.Generator().manual_seed(0)
    P = torch.randn(45, 131, generator=generator).to(P_dtype)
    P[3], P[4, 5] = 0, torch.nan
    P = P.to(device)
    results = []
    for epilogue in (epilogue_native, epilogue_eager):
        U, inverse_norm = poisoned(45, 131, dtype=U_dtype, device=device), poisoned(45, dtype=compute, device=device)
        epilogue.normalize_rows(P, U, inverse_norm)
        G = torch.randn(45, 131, generator=torch.Generator().manual_seed(1), dtype=compute).to(device)
        epilogue.normalize_rows_backward(G, U, inverse_norm)
        assert U[4].isnan().all()
        assert (U[3] == 0).all()
        assert (G[3] == 0).all()
        results.append((U, inverse_norm, G))
    eps = torch.finfo(compute).eps
    for mine, theirs, tolerance in zip(*results, (torch.finfo(U_dtype).eps, 8 * eps, 64 * eps), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_lie_apart(device, dtype):
    """Proxies may come as a view: every other row, or a transpose."""
    P = torch.randn(20, 33).to(dtype).to(device)
    for view in (P[::2], P.t()):
        U = poisoned(*view.shape, dtype=dtype, device=device)
        inverse_norm = poisoned(len(view), dtype=torch.float32, device=device)
        epilogue_native.normalize_rows(view, U, inverse_norm)
        expected = torch.nn.functional.normalize(view.float(), dim=1)
        torch.testing.assert_close(U.float(), expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("architectures", "capability", "serves"),
    [
        ("80-real 90-real", (8, 0), True),
        ("80-real 90-real", (8, 9), True),
        ("80-real 90-real", (7, 5), False),
        ("80-real 90-real", (10, 0), False),
        ("80-real 90-virtual", (10, 0), True),
        ("90a-real", (9, 0), True),
        ("90a-virtual", (10, 0), False),
        ("86-real", (8, 0), False),
        ("100-real 120-virtual", (12, 1), True),
        (None, (9, 0), False),
    ],
)
def test_architectures(architectures, capability, serves):
    reason = module._cuda_unavailable(architectures, capability)
    assert (reason is None) == serves
    if not serves:
        assert "reinstall" in reason


def test_launch_errors_name_the_kernel(native):
    """Without a driver, or with a stream that is none, the launch itself fails."""
    if native.cuda_architectures is None:
        pytest.skip("the native module was built without its CUDA part")
    if torch.cuda.is_available():
        pytest.skip("a GPU is present, and the launch would succeed")
    with pytest.raises(RuntimeError, match="CUDA kernel normalize_rows could not be launched"):
        native.normalize_rows_cuda_f32_f32(0, 0, 0, 8, 8, 0)


@pytest.mark.parametrize("m", [33, 600])
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("upstream", ["scalar", "vector", None])
def test_pairs(m, itself, upstream, device):
    generator = torch.Generator().manual_seed(m)
    rows, first, options = 5, 2, {"dtype": torch.float32, "device": device}
    labels = torch.randint(-1, 2**40, (m,), generator=generator) % 3 * 2**35 - 1  # no 32 bits hold them; some absent
    sets = PairSets.of(labels.to(device), None if itself else labels.flip(0).contiguous().to(device))
    S = (torch.randn(rows, m, generator=generator) / 3).clamp(-1, 1).to(device)
    weights = torch.rand(m, generator=generator).to(device)
    factors = torch.tensor([0.5, -2.0]) if upstream == "scalar" else torch.randn(2, rows, generator=generator)
    factors = factors.to(device)
    for problem in (
        PairLSEProblem(sets, 2.0, 50.0, 0.5, 0.1, weights),
        PairLSEProblem(sets, 2.0, 900.0, 0.5, None, None),
        PairHingeProblem(sets, 0.8, 0.1, -0.5, 0.2, False),
        PairHingeProblem(sets, -0.4, -1.2, 0.0, 0.0, True),
    ):
        results = []
        for epilogue in (epilogue_native, epilogue_eager):
            sums = poisoned(2, rows, **options)
            chunk = PairChunk(
                S=S.clone(),
                first=first,
                upstream_positive=None if upstream is None else factors[0],
                upstream_negative=None if upstream is None else factors[1],
                positive=sums[0],
                negative=sums[1],
                counts=torch.full((2, rows), -9, device=device) if problem.counts else None,
                V=poisoned(rows, 1, **options),
                inverse_norm=poisoned(rows, **options),
            )
            run_pair = epilogue.pair_lse if isinstance(problem, PairLSEProblem) else epilogue.pair_hinge
            run_pair(chunk, problem)
            results.append([sums, chunk.counts, chunk.S if upstream else None])
        for mine, other in zip(*results, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
