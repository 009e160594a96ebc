"""Triton's sums of pairs against the eager ones: on the GPU, or in Triton's interpreter on the CPU."""

from dataclasses import replace

import pytest
import torch

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.ops.pairs import triton as triton_pairs
from robustdml_ops.ops.pairs.problem import PairHingeProblem, PairLSEProblem, PairSets
from robustdml_ops.ops.pairs.sweep import BACKENDS, pair_sweep
from tests.nightly import nightly_but
from tests.triton_here import DEVICE, MARKS

EAGER, TRITON = BACKENDS["eager"], BACKENDS["triton"]

pytestmark = MARKS
SMALL_BLOCKS = {"BLOCK_R": 1, "BLOCK_M": 32, "num_warps": 4}
GIVEN = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
SHAPES = [(1, 1, 1), (5, 1030, 9), (20, None, 17), (20, "anew", 3), (7, "first", 3)]
FIELDS = ("positive", "negative", "counts", "danchors", "dcandidates")


def problems(sets, dtype, m):
    weights = torch.linspace(0, 1, m, dtype=dtype, device=DEVICE)
    plain = PairLSEProblem(sets, 2.0, 50.0, 0.5, None, None)
    hinge = PairHingeProblem(sets, 0.7, 0.1, 0.25, -0.5, False)
    return {
        "all": plain,
        "mined": replace(plain, epsilon=0.1, candidate_weights=weights),
        "shifted": replace(plain, beta=900.0),
        "mined and shifted": replace(plain, alpha=2000.0, epsilon=0.07),
        "cosine": hinge,
        "euclidean": replace(hinge, positive_margin=-0.4, negative_margin=-1.4, euclidean=True),
    }


PROBLEMS = tuple(problems(None, torch.float32, 1))


def sweep(backend, name, shape, dtype, seed=0):
    n, m, D = shape
    random = torch.Generator().manual_seed(seed)
    draw = lambda rows: torch.randn(rows, D, generator=random, dtype=torch.float64).to(DEVICE, dtype)  # noqa: E731
    classes = torch.tensor([ABSENT, -1, 0, 2**40, 3, 4])
    labels = lambda rows: classes[torch.randint(6, (rows,), generator=random)].to(DEVICE)  # noqa: E731
    X, y = draw(n), labels(n)
    m, anew, first = {"anew": (n, True, False), "first": (2 * n, False, True)}.get(m, (m, False, False))
    C, z = (None, None) if m is None else (draw(m), None if anew else labels(m))
    if first:
        C[:n], z[:n] = X, y
    problem = problems(PairSets.of(y, z, first), dtype, m or n)[name]
    upstream = tuple(torch.randn(n, generator=random, dtype=torch.float64).to(DEVICE, dtype) for _ in range(2))
    return pair_sweep(X, C, problem, upstream, backend, dtype, dtype, (True, True))


@pytest.mark.parametrize("shape", nightly_but([(20, None, 17), (7, "first", 3)], SHAPES), ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("small_chunks")
def test_same_as_eager(shape, dtype):
    for name in PROBLEMS:
        assert_same_as_eager(name, shape, dtype)


@pytest.mark.parametrize("name", ["mined", *(name for name in PROBLEMS if name != "mined")])
def test_rows_in_parts_same_as_eager(name, monkeypatch):
    """A program takes one row, or some of its candidates; three parts, of which the last one is short."""
    monkeypatch.setattr(triton_pairs, "epilogue_launch", lambda *_: SMALL_BLOCKS)
    monkeypatch.setattr(triton_pairs, "_PROGRAMS", 6)
    assert triton_pairs.parts_of(2, 390, 32) == (3, 160)
    assert_same_as_eager(name, (2, 390, 3), torch.float32)
    if name != "mined":
        return
    first, second = (sweep(TRITON, name, (2, 390, 3), torch.float32) for _ in range(2))
    for field in FIELDS:
        values = getattr(first, field), getattr(second, field)
        assert values == (None, None) or torch.equal(*values)


def assert_same_as_eager(name, shape, dtype):
    ours, exact, theirs = (
        sweep(backend, name, shape, kind) for backend, kind in ((TRITON, dtype), (EAGER, torch.float64), (EAGER, dtype))
    )
    for field in FIELDS:
        mine, dense, truth = (getattr(result, field) for result in (ours, theirs, exact))
        if truth is None:
            assert mine is None
        elif field == "counts":
            assert torch.equal(mine, truth), name
        else:
            allowed = 4 * (dense - truth).abs().max() + 64 * torch.finfo(dtype).eps * (1 + truth.abs().max())
            assert (mine - truth).abs().max() <= allowed, (name, field)


@pytest.mark.parametrize("shape", [(6, 40, 3), (14, None, 70), (3, 75, 1)], ids=str)
@pytest.mark.parametrize(
    "given", nightly_but([torch.float32, torch.bfloat16], [torch.float32, torch.float64, torch.bfloat16, torch.float16])
)
def test_near_rows_keep_their_distance(shape, given, monkeypatch):
    """Copies and near duplicates of one row, in several classes, against the eager sums in float64."""
    n, m, D = shape
    # Several blocks and a rest; every near pair is made of its rows one after the other, slowly in the interpreter.
    monkeypatch.setattr(triton_pairs, "epilogue_launch", lambda *_: SMALL_BLOCKS)
    random = torch.Generator().manual_seed(0)

    def draw(rows):
        spread = 10.0 ** torch.randint(-9, 0, (rows, 1), generator=random)
        return 1 + spread * torch.randn(rows, D, generator=random, dtype=torch.float64)

    X, C = draw(n).to(given), None if m is None else draw(m).to(given)
    y, z = torch.arange(n) % 3, None if m is None else torch.arange(m) % 4
    X[n // 2 :] = X[0] if C is None else C[: n - n // 2]
    dtype = given if given.itemsize == 8 else torch.float32
    sets = PairSets.of(y.to(DEVICE), z if z is None else z.to(DEVICE))
    problem = PairHingeProblem(sets, 0.0, -3.0, 0.0, 0.0, True)
    X, C = X.to(DEVICE), C if C is None else C.to(DEVICE)
    upstream = torch.ones((), dtype=dtype, device=DEVICE), torch.ones((), dtype=dtype, device=DEVICE)
    ours = pair_sweep(X, C, problem, upstream, TRITON, dtype, dtype, (True, True))
    theirs = pair_sweep(X, C, problem, upstream, EAGER, dtype, dtype, (True, True))
    exact = pair_sweep(X.double(), C if C is None else C.double(), problem, None, EAGER, torch.float64, torch.float64)
    assert torch.equal(ours.counts, exact.counts)
    assert ours.counts[0].any() or D == 1
    # What lies beyond the limit comes from a cosine.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    for field in ("positive", "negative"):
        mine, truth = getattr(ours, field).double(), getattr(exact, field)
        torch.testing.assert_close(mine, truth, rtol=tolerance, atol=tolerance * (n if m is None else m))
    for field in ("danchors", "dcandidates"):
        mine, other = getattr(ours, field), getattr(theirs, field)
        assert (mine is None) == (other is None)
        if mine is not None:
            assert torch.isfinite(mine).all()
            # Forces of length 1 between rows at 1e-5 are right to 2 %.
            scale = (n if m is None else m) / X.double().norm(dim=1).min()
            assert (mine - other).norm(dim=1).max() <= 0.1 * scale


def test_a_nan_reaches_the_result():
    """On a GPU nobody looks at the values; mining must not pass over them in silence."""
    random = torch.Generator().manual_seed(0)
    X = torch.randn(6, 4, generator=random).to(DEVICE)
    X[2] = torch.nan
    sets = PairSets.of(torch.tensor([0, 0, 1, 1, 2, 2], device=DEVICE), None)
    for problem in problems(sets, torch.float32, 6).values():
        result = pair_sweep(X, None, problem, None, TRITON, torch.float32, torch.float32)
        assert torch.isnan(result.positive + result.negative).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_set_that_mining_empties_has_the_sum_0(dtype):
    """Anchors without negatives keep no positive, and e^−shift of those may be 0."""
    X = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    sets = PairSets.of(torch.zeros(20).long().to(DEVICE), None)
    problem = PairLSEProblem(sets, 2000.0, 50.0, 0.5, 0.1, None)
    result = pair_sweep(X, None, problem, (torch.ones(20).to(X),) * 2, TRITON, dtype, dtype, (True, False))
    assert not result.positive.any() and not result.negative.any() and not result.danchors.any()
