"""The sweep over pairs: anchors are rows, a chunk of them at a time, and all candidates are columns.

What an anchor sums over its candidates is complete with its row, mining included. So, as in the Proxy-Anchor family, a
chunk is differentiated before it leaves the cache.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robustdml_ops.backends.tracing import without_autocast
from robustdml_ops.engine.chunk_sizes import chunk_rows
from robustdml_ops.engine.similarity_chunks import Chunk, Similarities, part, product
from robustdml_ops.engine.validation import check_gradient_fits
from robustdml_ops.ops.pairs.eager import EagerPairs
from robustdml_ops.ops.pairs.native import NativePairs
from robustdml_ops.ops.pairs.problem import (
    GivenRows,
    PairBackend,
    PairChunk,
    PairHingeProblem,
    PairLSEProblem,
    PairProblem,
    PairRooms,
    SymmetricBatch,
)
from robustdml_ops.ops.pairs.triton import TritonPairs

BACKENDS: dict[str, PairBackend] = {"native": NativePairs(), "triton": TritonPairs(), "eager": EagerPairs()}


# Rows of dS + dSᵀ at a time, so that nothing more of size n×n is beside S; elsewhere than on the CPU so many elements.
_ROWS, _ELEMENTS = 256, 1 << 24


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
    backend: PairBackend,
    dtype: torch.dtype,
    operand: torch.dtype,
    want: tuple[bool, bool] = (False, False),
) -> PairResult:
    """Sums of every anchor and, given their upstream gradients, the gradients of anchors and candidates.

    Six n·m·D flops with both gradients, four for a small batch with itself, two without gradients; what is of size n×m
    exists a chunk of anchors at a time.
    """
    others = anchors if candidates is None else candidates
    one_chunk = candidates is None and len(anchors) <= _largest_chunk(anchors, backend)
    if problem.average and not (one_chunk and backend.averages(anchors, dtype, operand)):
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
        rooms = PairRooms(of_positive, of_negative, result.positive, result.negative, result.counts, rows)
        if one_chunk:
            return _one_chunk(anchors, problem, rooms, backend, operand, result)
        if candidates is not None and isinstance(problem, PairHingeProblem) and others.dtype == dtype:
            names = ("embeddings", "candidates")
            similarities = Similarities(anchors, others, dtype, operand, backend, names=names)
            scale = anchors.new_empty(len(others), dtype=dtype)
            similarities.want_gradients(want_anchors, want_candidates)
            if backend.candidate_sweep(similarities, problem, rooms, scale):
                result.candidate_scale = scale
                result.danchors, result.dcandidates = similarities.gradients()
                return result
        # The anchors' part joins the candidates' in the compute type: half precision is rounded once, at the end.
        names = ("embeddings" if candidates is None else "candidates", "embeddings")
        similarities = Similarities(others, anchors.to(dtype), dtype, operand, backend, names=names)
        similarities.want_gradients(want_candidates, want_anchors)
        result.candidate_scale = similarities.X_inverse_norm
        if not backend.sweep(similarities, problem, rooms):
            for chunk in similarities:
                _run(backend, problem, rooms, chunk)
                similarities.backward(chunk)
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
    assert result.counts is not None
    terms = result.counts.sum(1).clamp(min=1).to(dtype)
    if any(want):
        assert upstream is not None
        factors = (upstream[0] / terms[0], upstream[1] / terms[1])
        result = pair_sweep(anchors, candidates, plain, factors, backend, dtype, operand, want)
    return _divided(result, terms)


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


def _one_chunk(
    anchors: Tensor,
    problem: PairProblem,
    rooms: PairRooms,
    backend: PairBackend,
    operand: torch.dtype,
    result: PairResult,
) -> PairResult:
    """Sums and gradient of a batch with itself where S is one chunk: it is symmetric, so two products do for three.

    A row is an anchor in its row of dS and a candidate in its column: its gradient is (dS + dSᵀ)·U, through one
    Jacobian.
    """
    (n, D), dtype, new = anchors.shape, result.positive.dtype, anchors.new_empty
    U, inverse_norm = new((n, D), dtype=operand), new(n, dtype=dtype)
    short = backend.normalize_rows(anchors, U, inverse_norm)
    S = new((n, n), dtype=dtype)
    if rooms.gradients:
        result.danchors = new((n, D), dtype=dtype)
    if not backend.symmetric(SymmetricBatch(U, S, result.danchors), problem, rooms):
        _run(backend, problem, rooms, Chunk(0, n, product(U, U.t(), S), U, inverse_norm, short, None))
        if result.danchors is not None:
            _both_parts(S, U, result.danchors)
    if result.danchors is not None:
        backend.normalize_rows_backward(result.danchors, U, inverse_norm)
        if short:
            check_gradient_fits(result.danchors, inverse_norm, "embeddings")
    if problem.average:
        assert result.counts is not None
        return _divided(result, result.counts.sum(1).clamp(min=1).to(dtype))
    return result


def _both_parts(dS: Tensor, U: Tensor, dU: Tensor) -> None:
    """DU ← (dS + dSᵀ)·U."""
    n = len(U)
    some = _ROWS if U.device.type == "cpu" else max(_ROWS, _ELEMENTS // n)
    for first in range(0, n, some):
        rows = slice(first, first + some)
        product((dS[rows] + dS[:, rows].t()).to(U.dtype), U, dU[rows])


def _run(backend: PairBackend, problem: PairProblem, rooms: PairRooms, chunk: Chunk) -> None:
    """One chunk: its sums into their rooms, and dL/dS."""
    first, last = chunk.first, chunk.last
    upstream = (rooms.upstream_positive, rooms.upstream_negative)
    positive, negative = (None if factor is None else part(factor, first, last) for factor in upstream)
    pairs = PairChunk(
        S=chunk.S,
        first=first,
        upstream_positive=positive,
        upstream_negative=negative,
        positive=rooms.positive[first:last],
        negative=rooms.negative[first:last],
        counts=None if rooms.counts is None else rooms.counts[:, first:last],
        rows=rooms.rows,
        V=chunk.V,
        scale=chunk.scale,
        dS=chunk.dS,
    )
    if isinstance(problem, PairLSEProblem):
        backend.pair_lse(pairs, problem)
    else:
        backend.pair_hinge(pairs, problem)
