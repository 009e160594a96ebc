"""The sweep over pairs: anchors are rows, a chunk of them at a time, and all candidates are columns.

What an anchor sums over its candidates is complete with its row, mining included. So, as in the Proxy-Anchor family, a
chunk is differentiated before it leaves the cache.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from robustdml_ops.engine.dispatch import Epilogue
from robustdml_ops.engine.pairs import PairChunk, PairLSEProblem, PairProblem
from robustdml_ops.engine.similarities import Similarities
from robustdml_ops.engine.sweep import part


@dataclass
class PairResult:
    """What a sweep over pairs found; None where it was not asked."""

    positive: Tensor  # (n,) compute type
    negative: Tensor  # (n,)
    counts: Tensor | None = None  # (2, n) int64: terms above 0 on either side, of hinges
    candidate_scale: Tensor | None = None  # (m,) 1 / |candidate|: NaN where one has NaN or inf
    danchors: Tensor | None = None  # (n, D) compute type; where the candidates are the anchors, of both
    dcandidates: Tensor | None = None  # (m, D) compute type


def pair_sweep(
    anchors: Tensor,
    candidates: Tensor | None,
    problem: PairProblem,
    upstream: tuple[Tensor, Tensor] | None,
    epilogue: Epilogue,
    dtype: torch.dtype,
    want: tuple[bool, bool] = (False, False),
) -> PairResult:
    """Sums of every anchor and, given their upstream gradients, the gradients of anchors and candidates.

    Six n·m·D flops with both gradients, two without; what is of size n×m exists a chunk of anchors at a time.

    Parameters
    ----------
    anchors, candidates : Tensor
        (n, D) and (m, D), any scale. None: the anchors themselves; their gradient then has both parts.
    upstream : pair of Tensor, optional
        dL/dpositive and dL/dnegative, each () or (n,) in the compute type ``dtype``. Needed for gradients.
    want : pair of bool
        Whether gradients of anchors and of candidates are wanted. Without candidates the first stands for both.
    """
    others = anchors if candidates is None else candidates
    n, new = len(anchors), anchors.new_zeros
    result = PairResult(new(n, dtype=dtype), new(n, dtype=dtype))
    if problem.counts:
        result.counts = new((2, n), dtype=torch.int64)
    want_anchors, want_candidates = want[0], want[0] if candidates is None else want[1]
    if n == 0 or len(others) == 0:
        result.danchors = new(anchors.shape, dtype=dtype) if want_anchors else None
        result.dcandidates = new(others.shape, dtype=dtype) if want_candidates and candidates is not None else None
        return result
    with torch.autocast(anchors.device.type, enabled=False):
        # The anchors' part joins the candidates' in the compute type: half precision is rounded once, at the end.
        similarities = Similarities(others, anchors.to(dtype), dtype, epilogue, 0)
        similarities.want_gradients(want_candidates, want_anchors)
        result.candidate_scale = similarities.X_inverse_norm
        factors = upstream if want_anchors or want_candidates else None
        for chunk in similarities:
            rows = slice(chunk.first, chunk.last)
            _run(
                epilogue,
                PairChunk(
                    S=chunk.S,
                    first=chunk.first,
                    upstream_positive=factors and part(factors[0], chunk.first, chunk.last),
                    upstream_negative=factors and part(factors[1], chunk.first, chunk.last),
                    positive=result.positive[rows],
                    negative=result.negative[rows],
                    counts=None if result.counts is None else result.counts[:, rows],
                    V=chunk.V,
                    inverse_norm=chunk.inverse_norm,
                ),
                problem,
            )
            similarities.backward(chunk)
        result.dcandidates, result.danchors = similarities.gradients()
    if candidates is None and result.danchors is not None and result.dcandidates is not None:
        result.danchors, result.dcandidates = result.danchors.add_(result.dcandidates), None
    return result


def _run(epilogue: Epilogue, chunk: PairChunk, problem: PairProblem) -> None:
    if isinstance(problem, PairLSEProblem):
        epilogue.pair_lse(chunk, problem)
    else:
        epilogue.pair_hinge(chunk, problem)
