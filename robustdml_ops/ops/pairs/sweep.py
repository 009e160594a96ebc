"""The sweep over pairs: :func:`pair_sweep` chooses between lanes, tiles, a symmetric batch, and a loop over chunks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import without_autocast
from robustdml_ops.backends.native_module import lanes_serve
from robustdml_ops.engine.labels import ABSENT, LabelSets
from robustdml_ops.engine.similarity_chunks import Chunk, Similarities, Swept, accumulate, chunk_rows, product
from robustdml_ops.engine.validation import check_gradient_fits
from robustdml_ops.ops.classes.autograd import Settings, sweep_values
from robustdml_ops.ops.classes.sweep import ClassProblem
from robustdml_ops.ops.pairs.backends import (
    Arithmetic,
    ContrastOptions,
    EagerPairs,
    GivenRows,
    PairBackend,
    PairOptions,
    PairProblem,
    PairSums,
)
from robustdml_ops.ops.pairs.compiled_backends import NativePairs, TritonPairs, rows_fit_lanes, whole_matrices_serve

BACKENDS: dict[str, PairBackend] = {"native": NativePairs(), "triton": TritonPairs(), "eager": EagerPairs()}

# Rows of dS + dSᵀ at a time, so that nothing more of size n×n is beside S; elsewhere than on the CPU so many elements.
_ROWS, _ELEMENTS = 256, 1 << 24

# Samples up to which the whole of S is faster than tiles of it; with "each" also below so many elements of the batch,
# unless S is too large to be made whole.
_WHOLE, _EACH_PAYS, _EACH_FITS = 1024, 1 << 20, 8192


@dataclass
class PairResult:
    """Results of a sweep over pairs; None where they were not wanted."""

    positive: Tensor  # (n,) compute type
    negative: Tensor  # (n,)
    counts: Tensor | None = None  # (2, n) int64: terms above 0 on either side, of hinges
    candidate_scale: Tensor | None = None  # (m,) 1 / |candidate|: NaN where one has NaN or inf
    danchors: Tensor | None = None  # (n, D) compute type; where the candidates are the anchors, of both
    dcandidates: Tensor | None = None  # (m, D) compute type
    by_anchor: Tensor | None = None  # (2, n) of contrasts: the part of each anchor in dcoefficients

    @property
    def dcoefficients(self) -> Tensor | None:
        """Gradient of the coefficients, (2,): Σ s dL/dz and Σ dL/dz of all pairs."""
        return None if self.by_anchor is None else self.by_anchor.sum(1)

    @property
    def terms(self) -> Tensor:
        """Terms above 0 of either side, (2,) in the compute type, at least 1."""
        return _terms(self.counts, self.positive.dtype)

    def divided(self, terms: Tensor) -> "PairResult":
        """With both sides divided by these numbers."""
        return replace(self, positive=self.positive / terms[0], negative=self.negative / terms[1])


def _terms(counts: Tensor | None, dtype: torch.dtype) -> Tensor:
    assert counts is not None
    return counts.sum(1).clamp(min=1).to(dtype)


def pair_sweep(
    anchors: Tensor,
    candidates: Tensor | None,
    problem: PairProblem,
    upstream: tuple[Tensor, Tensor] | None,
    arithmetic: Arithmetic,
    want: tuple[bool, ...] = (False, False),
) -> PairResult:
    """Sums of every anchor, and gradients as ``want`` says: of anchors, candidates, coefficients; 6·n·m·D flops."""
    others, (backend, dtype, _), n = anchors if candidates is None else candidates, arithmetic, len(anchors)
    rows = _given_rows(problem, anchors, others, dtype)
    if rows is not None:
        anchors, others = rows
        candidates = None if candidates is None else others
    way = way_of(anchors, candidates, arithmetic, problem.options)
    options: Any = problem.options
    if options.average and way != "batch":
        plain = replace(problem, options=replace(options, average=False))
        return _averaged(partial(pair_sweep, anchors, candidates, plain, arithmetic=arithmetic), upstream, want)
    new = anchors.new_zeros
    result = PairResult(new(n, dtype=dtype), new(n, dtype=dtype))
    if options.kind == "pair_hinge":
        result.counts = new((2, n), dtype=torch.int64)
    want_anchors, want_candidates = want[0], want[0] if candidates is None else want[1]
    if problem.coefficients is not None and any(want):
        result.by_anchor = new((2, n), dtype=dtype)
    if n == 0 or len(others) == 0:
        result.danchors = new(anchors.shape, dtype=dtype) if want_anchors else None
        result.dcandidates = new(others.shape, dtype=dtype) if want_candidates and candidates is not None else None
        return result
    factors = upstream if any(want) else None
    with without_autocast(anchors.device):
        outputs = result.positive, result.negative, result.counts, rows, result.by_anchor, problem.hardest
        sums = PairSums(factors, *outputs)
        matrices, want = (anchors, others)[: 1 if candidates is None else 2], (want_anchors, want_candidates)
        gradients = backend.whole_sweep(way, matrices, problem, (sums,), arithmetic, want)
        if gradients is not None:
            result.danchors, result.dcandidates = gradients
        elif candidates is None and _is_one_chunk(anchors, backend):
            result.danchors = _symmetric(anchors, problem, sums, arithmetic)
        else:
            _in_chunks(anchors, candidates, problem, sums, result, arithmetic, want)
    return result.divided(result.terms) if options.average else result


def way_of(anchors: Tensor, candidates: Tensor | None, arithmetic: Arithmetic, options: PairOptions) -> str:
    """How a sweep goes: the whole "batch" at once, by "tiles", by lanes of "anchors" or "candidates", by "chunks"."""
    form = getattr(options, "form", "")  # of a contrast, which allows tiles
    others, (backend, dtype, operand) = anchors if candidates is None else candidates, arithmetic
    whole = backend.has_lanes and whole_matrices_serve(anchors, dtype, operand)
    if whole and (form == "both" if candidates is not None else tiles_pay(form, anchors)):
        return "tiles"
    if candidates is None and _is_one_chunk(anchors, backend):
        return "batch"
    if not backend.has_lanes:
        return "chunks"
    if options.kind == "pair_hinge":
        return "candidates" if candidates is not None and lanes_serve(others, operand, dtype) else "chunks"
    return "anchors" if rows_fit_lanes(others) and lanes_serve(anchors.to(dtype), operand, dtype) else "chunks"


def _is_one_chunk(anchors: Tensor, backend: PairBackend) -> bool:
    """Whether S of a batch with itself is made whole."""
    n, D = anchors.shape
    return n <= chunk_rows(n, n + 2 * D, anchors.device, n * backend.temporaries)


def _averaged(
    sweep: Callable[..., PairResult], upstream: tuple[Tensor, Tensor] | None, want: tuple[bool, ...]
) -> PairResult:
    """Hinges as means of the terms above 0, whose number a sweep knows at its end: gradients take a second one."""
    result = sweep(upstream=None)
    terms = result.terms
    if any(want):
        assert upstream is not None
        result = sweep(upstream=(upstream[0] / terms[0], upstream[1] / terms[1]), want=want)
    return result.divided(terms)


def _in_chunks(
    anchors: Tensor,
    candidates: Tensor | None,
    problem: PairProblem,
    sums: PairSums,
    result: PairResult,
    arithmetic: Arithmetic,
    want: tuple[bool, bool],
) -> None:
    """Chunks of anchors against all candidates. Fills ``sums``, and adds to ``result`` what ``want`` says."""
    others, (backend, dtype, operand) = anchors if candidates is None else candidates, arithmetic
    # The anchors' gradient joins the candidates' in the compute type: half precision is rounded once, at the end.
    name, swept = "embeddings" if candidates is None else "candidates", Swept(anchors.to(dtype), "embeddings")
    # Without lanes one side alone may be as it is: a batch with itself, and the contrast "both", have two.
    as_they_are = backend.has_lanes or (candidates is not None and problem.column_lse is None)
    similarities = Similarities(others, swept, dtype, operand, backend, name=name, as_they_are=as_they_are)
    result.candidate_scale = similarities.X_inverse_norm
    # A batch with itself has one gradient, of its rows on either side.
    similarities.want_gradients(want[1], want[0] and candidates is not None)
    for chunk in similarities:
        backend.pair_sums(chunk, problem, sums)
        similarities.backward(chunk)
        if candidates is None and want[0]:
            _add_anchors(similarities, chunk)
    result.dcandidates, result.danchors = similarities.gradients()
    if candidates is None:
        result.danchors, result.dcandidates = result.dcandidates, None


def both_ways(
    anchors: Tensor,
    candidates: Tensor,
    problem: PairProblem,
    upstream: tuple[Tensor, Tensor],
    name: str,
    arithmetic: Arithmetic,
    want: tuple[bool, ...],
) -> PairResult:
    """The contrast "both" with weights (n,) of its pairs: by tiles on the CPU, else by rows with the backend ``name``.

    By rows takes a sweep for the log-sum-exps of the candidates, and one for those of the anchors and all gradients.
    """
    n, m, factor = len(anchors), len(candidates), upstream[0]
    plain, more = replace(problem, options=ContrastOptions("outside")), (arithmetic, want)
    if n == 0:
        return pair_sweep(anchors, candidates, plain, upstream, *more)
    # Candidates without an anchor have no loss.
    of_candidates = factor.new_zeros(m)
    of_candidates[:n] = factor
    upstream_of = [(factors, factor.new_zeros(())) if any(want) else None for factors in (factor, of_candidates)]
    by_anchor = factor.new_zeros((2, n)) if any(want) else None
    row_sums, column_sums = factor.new_zeros((2, n)), factor.new_zeros((2, m))
    sums = (
        PairSums(upstream_of[0], row_sums[0], row_sums[1], None, None, by_anchor, problem.hardest),
        PairSums(upstream_of[1], column_sums[0], column_sums[1], counts=None, rows=None),
    )
    gradients = arithmetic.backend.whole_sweep("tiles", (anchors, candidates), plain, sums, arithmetic, want)
    if gradients is not None:
        return PairResult(row_sums[0] + column_sums[0, :n], row_sums[1], None, None, *gradients, by_anchor)
    assert problem.coefficients is not None
    absent, place = problem.sets.labels == ABSENT, torch.arange(n, device=factor.device)
    mask = torch.zeros_like(factor).masked_fill_(absent, -torch.inf)
    if problem.sets.are_plain:
        # Losses over classes choose another operand type on a CPU.
        settings = Settings(differentiable=False, backend=name, operand=arithmetic.operand)
        classes = ClassProblem(LabelSets.of(place), problem.coefficients[0].detach(), mask)
        lse, target = sweep_values(candidates[:n], anchors, classes, settings)
        of_columns = lse - target
    else:
        back = replace(plain, sets=problem.sets.turned(), hardest=None)
        turned = pair_sweep(candidates, anchors, back, None, arithmetic)
        of_columns, lse = turned.positive[:n], turned.negative[:n]
    column_lse = factor.new_full((m,), torch.inf)
    column_lse[:n] = lse.masked_fill(absent, torch.inf)
    columns: dict[str, Any] = {"column_lse": column_lse, "column_upstream": of_candidates}
    # dL/dz of row i, with shares p = e^(z − lse):  positive: w (p_row + p_column − 2),  others: w (p_row + p_column).
    # The upstream gradients (2w, −w) of loss = lse − z and lse give w p_row − 2w; the columns add w p_column.
    result = pair_sweep(anchors, candidates, replace(plain, **columns), (2 * factor, -factor), *more)
    return replace(result, positive=result.positive + of_columns.masked_fill(absent, 0))


def tiles_pay(form: str, anchors: Tensor) -> bool:
    """Whether a batch goes over half of S by tiles: "each" looks at tiles once more, which short rows do not pay."""
    n, D = anchors.shape
    if form == "each":
        return n > _WHOLE and (n * D >= _EACH_PAYS or n >= _EACH_FITS)
    return form in ("outside", "inside") and n > _WHOLE


def _add_anchors(similarities: Similarities, chunk: Chunk) -> None:
    """Add what the rows of a chunk have as anchors to the gradient of the unit candidates, which are the same rows."""
    assert similarities.dX is not None
    dS = chunk.S.to(chunk.V.dtype) if chunk.dS is None else chunk.dS
    dU = product(dS, similarities.X, similarities.dX.new_empty((len(dS), similarities.X.shape[1])))
    # Where anchors were multiplied as they are dS has the factor 1 / |anchor|, as dX has where candidates were.
    if similarities.X_scale is None and chunk.scale is not None:
        dU /= chunk.scale.masked_fill(chunk.scale == 0, 1)[:, None]  # a row of zeros: dS has its 0
    similarities.dX[chunk.first : chunk.last] += dU


def _symmetric(
    anchors: Tensor,
    problem: PairProblem,
    sums: PairSums,
    arithmetic: Arithmetic,
) -> Tensor | None:
    """A batch with itself, whose S is one chunk and symmetric: two products do for three. Fills ``sums``.

    A row is an anchor in its row of dS and a candidate in its column: dL/dU = (dS + dSᵀ)·U, through one Jacobian.
    """
    (n, D), (backend, dtype, operand), new = anchors.shape, arithmetic, anchors.new_empty
    U, inverse_norm = new((n, D), dtype=operand), new(n, dtype=dtype)
    short = backend.normalize_rows(anchors, U, inverse_norm)
    S = new((n, n), dtype=dtype)
    dU = None if sums.upstream is None else new((n, D), dtype=dtype)
    # Tensor cores take less time for another product than memory for a sum of dS and its transpose.
    dS = new((n, n), dtype=operand) if dU is not None and backend.rounds and operand != dtype else None
    chunk = Chunk(0, n, product(U, U.t(), S), U, inverse_norm, short, None, dS)
    if problem.options.average and sums.upstream is not None:
        backend.pair_sums(chunk, problem, replace(sums, upstream=None))
        if not backend.keeps_cosines(S, problem):
            product(U, U.t(), S)
        positive, negative = _terms(sums.counts, dtype)
        sums = replace(sums, upstream=(sums.upstream[0] / positive, sums.upstream[1] / negative))
    backend.pair_sums(chunk, problem, sums)
    if dU is None:
        return None
    multiply_both_sides(S if dS is None else dS, U, dU)
    backend.normalize_rows_backward(dU, U, inverse_norm)
    if short:
        check_gradient_fits(dU, inverse_norm, "embeddings")
    return dU


def multiply_both_sides(dS: Tensor, U: Tensor, dU: Tensor) -> None:
    """DU ← (dS + dSᵀ)·U."""
    if dS.dtype != dU.dtype:
        accumulate(product(dS, U, dU), dS.t(), U)
        return
    n = len(U)
    some = _ROWS if U.device.type == "cpu" else max(_ROWS, _ELEMENTS // n)
    for first in range(0, n, some):
        rows = slice(first, first + some)
        product((dS[rows] + dS[:, rows].t()).to(U.dtype), U, dU[rows])


def _given_rows(problem: PairProblem, anchors: Tensor, others: Tensor, dtype: torch.dtype) -> GivenRows | None:
    """The rows that distances need; on the CPU in the compute type, which the normalisation would make for itself."""
    if not problem.options.euclidean:
        return None
    given = anchors.contiguous() if anchors.is_cuda else anchors.to(dtype).contiguous()
    if others is anchors:
        return GivenRows(given, given)
    return GivenRows(given, others.contiguous() if others.is_cuda else others.to(dtype).contiguous())
