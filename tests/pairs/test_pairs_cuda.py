"""The sums of pairs in native CUDA against eager PyTorch: on the GPU where there is one, in emulation everywhere."""

import pytest
import torch

from robustdml_ops.label_sets import ABSENT
from robustdml_ops.pairs.problem import PairChunk, PairHingeProblem, PairLSEProblem, PairSets
from robustdml_ops.pairs.sweep import BACKENDS

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
                V=torch.empty(rows, 1, **options),
                inverse_norm=torch.empty(rows, **options),
            )
            run_pair = backend.pair_lse if isinstance(problem, PairLSEProblem) else backend.pair_hinge
            run_pair(chunk, problem)
            results.append([sums, chunk.counts, chunk.S if upstream else None])
        for mine, other in zip(*results, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
