"""The sums of pairs in native CUDA against eager PyTorch: on the GPU where there is one, in emulation everywhere."""

from itertools import product

import pytest
import torch

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.ops.pairs.problem import GivenRows, PairChunk, PairHingeProblem, PairLSEProblem, PairSets
from robustdml_ops.ops.pairs.sweep import BACKENDS

NATIVE, EAGER = BACKENDS["native"], BACKENDS["eager"]


@pytest.mark.parametrize("m", [33, 600])
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("upstream", ["scalar", "vector", None])
def test_pairs(m, itself, upstream, device):
    generator = torch.Generator().manual_seed(m)
    rows, first, options = 5, 2, {"dtype": torch.float32, "device": device}
    labels = torch.randint(4, (m,), generator=generator) * 2**35 - 1  # no 32 bits hold them
    labels[labels == 3 * 2**35 - 1] = ABSENT
    sets = PairSets.of(labels.to(device), None if itself else labels.flip(0).contiguous().to(device))
    S = (torch.randn(rows, m, generator=generator) / 3).clamp(-1, 1).to(device)
    weights = torch.rand(m, generator=generator).to(device)
    factors = torch.tensor([0.5, -2.0]) if upstream == "scalar" else torch.randn(2, rows, generator=generator)
    factors = factors.to(device)
    rows_of_pairs = GivenRows(*(torch.randn(n, 1, **options) for n in (first + rows, m)))
    for problem in (
        PairLSEProblem(sets, 2.0, 50.0, 0.5, 0.1, weights),
        PairLSEProblem(sets, 2.0, 900.0, 0.5, None, None),
        PairHingeProblem(sets, 0.8, 0.1, -0.5, 0.2, False),
        PairHingeProblem(sets, -0.4, -1.2, 0.0, 0.0, True),
    ):
        results = []
        for backend in (NATIVE, EAGER):
            sums = torch.empty(2, rows, **options)
            chunk = PairChunk(
                S=S.clone(),
                first=first,
                upstream_positive=None if upstream is None else factors[0],
                upstream_negative=None if upstream is None else factors[1],
                positive=sums[0],
                negative=sums[1],
                counts=torch.full((2, rows), -9, device=device) if problem.counts else None,
                rows=rows_of_pairs if getattr(problem, "euclidean", False) else None,
                V=torch.empty(rows, 1, **options),
            )
            run_pair = backend.pair_lse if isinstance(problem, PairLSEProblem) else backend.pair_hinge
            run_pair(chunk, problem)
            results.append([sums, chunk.counts, chunk.S if upstream else None])
        for mine, other in zip(*results, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize(("anchors", "candidates"), [*product(TYPES, TYPES)], ids=str)
@pytest.mark.parametrize("m", [33, 600])
def test_near_rows_of_any_type(anchors, candidates, m, device):
    """Copies of the anchors and near ones, in their own types, against the eager sums in float64."""
    generator, compute = (
        torch.Generator().manual_seed(m),
        torch.float64 if torch.float64 in (anchors, candidates) else torch.float32,
    )
    rows, D = 5, 40
    P = torch.randn(rows, D, generator=generator).to(torch.bfloat16).float()  # every type has these, but for a scale
    Q = P[torch.arange(m) % rows] * 2.0 ** (torch.arange(m) % 3)[:, None]
    Q[:: 2 * rows + 1] *= 1 + torch.randn(D, generator=generator) / 30
    P, Q = P.to(device, anchors), Q.to(device, candidates)
    sets = PairSets.of((torch.arange(rows) % 2).to(device), (torch.arange(m) % 3).to(device))
    problem = PairHingeProblem(sets, 0.0, -3.0, 0.0, 0.0, True)
    S = torch.nn.functional.normalize(P.to(compute)) @ torch.nn.functional.normalize(Q.to(compute)).t()
    results = []
    for backend, dtype in ((NATIVE, compute), (EAGER, torch.float64)):
        sums, counts = torch.empty(2, rows, dtype=dtype, device=device), torch.full((2, rows), -9, device=device)
        ones = torch.ones((), dtype=dtype, device=device)
        chunk = PairChunk(
            S=S.to(dtype).clone(), first=0, upstream_positive=ones, upstream_negative=ones,
            positive=sums[0], negative=sums[1], counts=counts, rows=GivenRows(P, Q),
            V=torch.empty(rows, D, dtype=dtype, device=device),
        )  # fmt: skip
        backend.pair_hinge(chunk, problem)
        results.append((sums.double(), counts, chunk.S == 0))
    (sums, counts, still), (expected, expected_counts, equal) = results
    assert torch.equal(counts, expected_counts)
    assert torch.equal(still, equal)
    assert 0 < counts[0].sum() < (sets.labels[:, None] == sets.candidate_labels).sum()  # some positives are copies
    torch.testing.assert_close(sums, expected, rtol=1e-4 if compute == torch.float32 else 1e-12, atol=0)


def test_a_set_that_mining_empties_has_the_sum_0(device):
    """Anchors without negatives keep no positive, and e^−shift of those may be 0."""
    options = {"dtype": torch.float32, "device": device}
    sets = PairSets.of(torch.zeros(33).long().to(device), None)
    sums = torch.empty(2, 5, **options)
    chunk = PairChunk(
        S=torch.linspace(-1, 1, 5 * 33, **options).view(5, 33),
        first=0,
        upstream_positive=torch.ones((), **options),
        upstream_negative=torch.ones((), **options),
        positive=sums[0],
        negative=sums[1],
        counts=None,
        rows=None,
        V=torch.empty(5, 1, **options),
    )
    NATIVE.pair_lse(chunk, PairLSEProblem(sets, 2000.0, 50.0, 0.5, 0.1, None))
    assert not sums.any() and not chunk.S.any()
