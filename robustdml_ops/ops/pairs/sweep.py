"""The sweep over pairs: :func:`pair_sweep` chooses between lanes, a symmetric batch, and a loop over chunks.

Anchors are rows, a chunk of them at a time, and all candidates are columns. The sums of an anchor are complete with its
row, mining included: so, as in the Proxy-Anchor family, a chunk is differentiated before it leaves the cache.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robustdml_ops.backends.tracing import without_autocast
from robustdml_ops.engine.chunk_sizes import chunk_rows
from robustdml_ops.engine.lanes import lanes_serve
from robustdml_ops.engine.similarity_chunks import Similarities
from robustdml_ops.ops.pairs.eager import EagerPairs
from robustdml_ops.ops.pairs.native import NativePairs
from robustdml_ops.ops.pairs.problem import (
    GivenRows,
    PairBackend,
    PairBuffers,
    PairHingeProblem,
    PairLSEProblem,
    PairProblem,
)
from robustdml_ops.ops.pairs.sweep_by_chunks import sweep_by_chunks
from robustdml_ops.ops.pairs.sweep_by_lanes import MOST_CANDIDATES, hinge_by_lanes, lse_by_lanes, symmetric_lanes_serve
from robustdml_ops.ops.pairs.sweep_symmetric import sweep_symmetric
from robustdml_ops.ops.pairs.triton import TritonPairs

BACKENDS: dict[str, PairBackend] = {"native": NativePairs(), "triton": TritonPairs(), "eager": EagerPairs()}


@dataclass
class PairResult:
    """Results of a sweep over pairs; None where they were not wanted."""

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
    backend: PairBackend,
    dtype: torch.dtype,
    operand: torch.dtype,
    want: tuple[bool, bool] = (False, False),
) -> PairResult:
    """Sums of every anchor and, given their upstream gradients, the gradients: at most 6·n·m·D flops."""
    others = anchors if candidates is None else candidates
    native = isinstance(backend, NativePairs)
    symmetric = candidates is None and len(anchors) <= _largest_chunk(anchors, backend)
    symmetric_lanes = symmetric and native and symmetric_lanes_serve(anchors, dtype, operand)
    if problem.average and not symmetric_lanes:
        assert isinstance(problem, PairHingeProblem)
        return _averaged(anchors, candidates, problem, upstream, backend, dtype, operand, want)
    n, new = len(anchors), anchors.new_zeros
    result = PairResult(new(n, dtype=dtype), new(n, dtype=dtype))
    if problem.counts:
        result.counts = new((2, n), dtype=torch.int64)
    want_anchors, want_candidates = want[0], want[0] if candidates is None else want[1]
    if n == 0 or len(others) == 0:
        result.danchors = new(anchors.shape, dtype=dtype) if want_anchors else None
        result.dcandidates = new(others.shape, dtype=dtype) if want_candidates and candidates is not None else None
        return result
    factors = upstream if want_anchors or want_candidates else None
    rows = _given_rows(problem, anchors, others, dtype)
    if rows is not None:
        anchors, others = rows
    with without_autocast(anchors.device):
        of_positive, of_negative = factors or (None, None)
        buffers = PairBuffers(of_positive, of_negative, result.positive, result.negative, result.counts, rows)
        if symmetric:
            result.danchors = sweep_symmetric(anchors, problem, buffers, backend, operand, symmetric_lanes)
            return _divided(result, _terms(result)) if problem.average else result
        by_lanes = native and candidates is not None and lanes_serve(others, operand, dtype)
        if by_lanes and isinstance(problem, PairHingeProblem):
            similarities = Similarities(anchors, others, dtype, operand, backend, names=("embeddings", "candidates"))
            result.candidate_scale = anchors.new_empty(len(others), dtype=dtype)
            similarities.want_gradients(want_anchors, want_candidates)
            hinge_by_lanes(similarities, problem, buffers, result.candidate_scale)
            result.danchors, result.dcandidates = similarities.gradients()
            return result
        # The anchors' gradient joins the candidates' in the compute type: half precision is rounded once, at the end.
        names = ("embeddings" if candidates is None else "candidates", "embeddings")
        anchors = anchors.to(dtype)
        similarities = Similarities(others, anchors, dtype, operand, backend, names=names)
        similarities.want_gradients(want_candidates, want_anchors)
        result.candidate_scale = similarities.X_inverse_norm
        by_lanes = native and len(others) <= MOST_CANDIDATES and lanes_serve(anchors, operand, dtype)
        if by_lanes and isinstance(problem, PairLSEProblem):
            lse_by_lanes(similarities, problem, buffers)
        else:
            sweep_by_chunks(similarities, problem, buffers, backend)
        result.dcandidates, result.danchors = similarities.gradients()
    if candidates is None and result.danchors is not None and result.dcandidates is not None:
        result.danchors, result.dcandidates = result.danchors.add_(result.dcandidates), None
    return result


def _averaged(
    anchors: Tensor,
    candidates: Tensor | None,
    problem: PairHingeProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: PairBackend,
    dtype: torch.dtype,
    operand: torch.dtype,
    want: tuple[bool, bool],
) -> PairResult:
    """Each side over the number of its terms above 0, which a sweep knows at its end: gradients take a second one."""
    plain = replace(problem, average=False)
    result = pair_sweep(anchors, candidates, plain, None, backend, dtype, operand)
    terms = _terms(result)
    if any(want):
        assert upstream is not None
        factors = (upstream[0] / terms[0], upstream[1] / terms[1])
        result = pair_sweep(anchors, candidates, plain, factors, backend, dtype, operand, want)
    return _divided(result, terms)


def _terms(result: PairResult) -> Tensor:
    """Terms above 0 of either side, (2,) in the compute type, at least 1."""
    assert result.counts is not None
    return result.counts.sum(1).clamp(min=1).to(result.positive.dtype)


def _divided(result: PairResult, terms: Tensor) -> PairResult:
    return replace(result, positive=result.positive / terms[0], negative=result.negative / terms[1])


def _largest_chunk(anchors: Tensor, backend: PairBackend) -> int:
    """Rows that a chunk of a batch with itself may have."""
    n, D = anchors.shape
    return chunk_rows(n, n + 2 * D, anchors.device, n * backend.temporaries)


def _given_rows(problem: PairProblem, anchors: Tensor, others: Tensor, dtype: torch.dtype) -> GivenRows | None:
    """The rows that distances need; on the CPU in the compute type, which the normalisation would make for itself."""
    if isinstance(problem, PairLSEProblem) or not problem.euclidean:
        return None
    given = anchors.contiguous() if anchors.is_cuda else anchors.to(dtype).contiguous()
    if others is anchors:
        return GivenRows(given, given)
    return GivenRows(given, others.contiguous() if others.is_cuda else others.to(dtype).contiguous())
