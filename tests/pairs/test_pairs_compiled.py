"""The Triton kernels of the sums of pairs: how rows are shared among programs, and compiled ahead of time."""

import pytest
import torch

from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.pairs.problem import (
    GivenRows,
    PairBuffers,
    PairContrastProblem,
    PairHingeProblem,
    PairLSEProblem,
    PairSets,
)
from robustdml_ops.ops.pairs.triton import TritonPairs, parts_of
from tests.ahead_of_time import ARCHITECTURES, check
from tests.nightly import nightly_but

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
ROWS, D = 64, 128


def sets(m, itself):
    return PairSets.of(torch.zeros(m if itself else ROWS).long(), None if itself else torch.zeros(m).long())


def lse(m, compute, alpha=2.0, weights=True, itself=False):
    weights = torch.ones(m, dtype=compute) if weights else None
    return epilogue(PairLSEProblem(sets(m, itself), alpha, 40.0, 0.5, 0.1, weights), m, compute)


def hinge(m, compute, euclidean, itself=False):
    return epilogue(PairHingeProblem(sets(m, itself), 0.9, 0.1, 0.0, 0.0, euclidean), m, compute)


def contrast(m, compute, form, both_ways=False):
    columns = (torch.zeros(m, dtype=compute), torch.zeros(m, dtype=compute)) if both_ways else None
    coefficients = torch.ones(2, dtype=compute)
    return epilogue(PairContrastProblem(sets(m, not both_ways), coefficients, form, columns), m, compute)


def epilogue(problem, m, compute):
    """With gradients."""
    upstream = torch.ones((), dtype=compute)
    sums = torch.zeros(2, ROWS, dtype=compute)
    euclidean, given = getattr(problem, "euclidean", False), BF16 if compute == F32 else compute
    rows = GivenRows(torch.zeros(ROWS, D, dtype=given), torch.zeros(m, D, dtype=given)) if euclidean else None
    buffers = PairBuffers((upstream, upstream), *sums, torch.zeros(2, ROWS, dtype=torch.int64), rows, sums.clone())
    S, V = torch.zeros(ROWS, m, dtype=compute), torch.zeros(ROWS, D, dtype=given)
    dS = None if problem.sets.itself or given != BF16 else torch.zeros(ROWS, m, dtype=given)
    chunk = Chunk(0, ROWS, S, V, torch.ones(ROWS, dtype=compute), False, None, dS)
    return lambda: TritonPairs().pair_sums(chunk, problem, buffers)


LAUNCHES = {
    "lse of a bank": lse(65_536, F32),
    "lse of a batch with itself": lse(1024, F32, weights=False, itself=True),
    "lse of a bank, shifted": lse(65_536, F32, alpha=1000.0),
    "lse of a batch in one part": lse(2048, F32),
    "lse of an odd number": lse(9999, F32),
    "lse of short rows in float64, shifted": lse(64, F64, alpha=1000.0),
    "contrast outside": contrast(2048, F32, "outside"),
    "contrast inside": contrast(2048, F32, "inside"),
    "contrast of each positive": contrast(2048, F32, "each"),
    "contrast of logistic losses": contrast(2048, F32, "sigmoid"),
    "contrast both ways": contrast(2048, F32, "outside", both_ways=True),
    "contrast in float64": contrast(512, F64, "inside"),
    "hinge of a bank": hinge(65_536, F32, euclidean=False),
    "hinge of distances in a bank": hinge(65_536, F32, euclidean=True),
    "hinge of distances in a batch": hinge(1024, F32, euclidean=True, itself=True),
    "hinge of distances in float64": hinge(256, F64, euclidean=True),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "name", nightly_but(["lse of a bank", "contrast both ways", "hinge of distances in a batch"], LAUNCHES)
)
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    check(LAUNCHES[name], architecture, tmp_path)


@pytest.mark.parametrize("m", [1, 1000, 4096, 36_900, 10**6, 10**7])
def test_parts_cover_all_candidates_and_fill_a_gpu(m):
    for programs in (1, 7, 64, 256, 10_000):
        parts, per_part = parts_of(programs, m, 1024)
        assert per_part % 1024 == 0
        assert (parts - 1) * per_part < m <= parts * per_part
        assert parts == 1 or per_part >= 4 * 1024
        assert parts <= 264
        assert m < 10**6 or parts * programs >= 132
        assert programs < 256 or parts == 1
