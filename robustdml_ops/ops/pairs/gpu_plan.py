"""The plan of a step of a loss on pairs on a GPU: a list of launches and products."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.dispatch import choose, operand_dtype, passes_self_check, product_dtype, without_autocast
from robustdml_ops.backends.triton_launch import Launch
from robustdml_ops.engine.gpu_plan import FLOATING, Finish, Unscaled, finish_launch
from robustdml_ops.engine.plan import Plan, Results
from robustdml_ops.engine.rows.backends import TritonRows
from robustdml_ops.engine.similarity_chunks import accumulate, chunk_rows, product
from robustdml_ops.engine.validation import check_sample_weights
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.backends import Arithmetic, ContrastOptions
from robustdml_ops.ops.pairs.compiled_backends import (
    COMMON,
    COUNTS,
    OWN,
    SUMS,
    UPSTREAM,
    ChunkPlace,
    TritonPairs,
    pair_launches,
)
from robustdml_ops.ops.pairs.formula import PairFormula, finish_step_launch, prepare_launch
from robustdml_ops.ops.pairs.sets import sets_are_read
from robustdml_ops.ops.pairs.sweep import BACKENDS, multiply_both_sides, way_of

STEPS = dict(BACKENDS)  # of the self-check of planned steps


class PairChunk(NamedTuple):
    """Anchors of a chunk, and the launches of its epilogue."""

    first: int
    last: int
    launches: list[Launch]


@dataclass(frozen=True)
class PairGpuPlan(Plan):
    """A step of one formula on a GPU. Tensors are those of :class:`PairPlan`."""

    formula: PairFormula
    sizes: tuple[int, int, int]  # n, m, D
    compute: torch.dtype
    operand: torch.dtype  # of what the products multiply
    autocast: bool
    as_they_are: bool  # whether candidates are multiplied as they are, and not unit rows
    prepare: tuple[Launch, Launch]  # anchors and candidates
    columns: list[Launch]  # of "both": the epilogue of the candidates as anchors
    chunks: list[PairChunk]
    parts: int  # in which candidates are taken
    finish: Launch  # the loss
    finish_rows: tuple[Finish, Finish]  # gradients of anchors and candidates
    general_loss: Callable[..., Tensor] = field(repr=False)

    def run(self, *tensors: Any) -> Results:
        """Unit rows; product, epilogue and gradients of each chunk; the loss. Values are never waited for."""
        X, others, log_scale, bias, labels, other_labels, weights, ids, other_ids = tensors[:9]
        formula, new = self.formula, partial(X.new_empty, dtype=self.compute)
        if X.is_cpu and weights is not None:  # Triton's interpreter leaves out the kernel's assertions
            check_sample_weights(weights, X)
        with device.current(X), without_autocast(X.device):
            of_loss = scales = new((2, self.sizes[0]))
            coefficients = new(2) if formula.options.kind == "pair_contrast" else None
            masked, constants = weights is not None or labels is None, (weights, log_scale, bias, scales, coefficients)
            anchors = candidates = self._unit_rows(self.prepare[0], X, labels, masked, *constants)
            if others is not None:
                masked, constants = other_labels is not None and formula.ignored is not None, (None,) * 5
                if self.columns:
                    of_loss = torch.empty_like(scales)
                    constants = weights, None, None, of_loss, None
                candidates = self._unit_rows(self.prepare[1], others, other_labels, masked, *constants)
            norm = candidates[1] if self.as_they_are else None
            known = anchors[2] if candidates[2] is None else candidates[2]
            named = {**self._results(new), "labels": anchors[2], "candidate_labels": known}
            named |= {"ids": ids, "candidate_ids": ids if other_ids is None else other_ids}
            named["candidate_inverse_norm"] = norm
            named |= {"coefficients": coefficients, "anchors": X, "candidates": X if others is None else others}
            if weights is not None and formula.candidate_weights:
                named["candidate_weights"] = weights.to(self.compute)
            sides = (anchors[0], candidates[0])
            gradients = [new(U.shape) if want else None for want, U in zip(self.wanted, sides, strict=False)]
            loss, divisor = new(()), new(()) if formula.N in ("above", "pairs") else None
            of_logits = zip(self.wanted[2:], (log_scale, bias), strict=True)
            logits = [torch.empty_like(number) if want else None for want, number in of_logits]
            last = (of_loss, named.get("dcoefficients"), coefficients, loss, divisor, *logits)
            if self.columns:
                self._column_sums(named, sides, new)
                named["column_upstream"] = of_loss[0]
            finish = partial(self.finish, *(named.get(name) for name in self.finish.varying[: -len(last)]), *last)
            if formula.N == "terms":
                self._sweep(named, sides, None)
                finish()
            named |= zip(UPSTREAM, scales, strict=True)
            self._sweep(named, sides, gradients)
            if formula.N != "terms":
                finish()
        if norm is not None:
            candidates = (candidates[0], None)
        found = zip(gradients, (anchors, candidates), strict=True)
        unscaled = [None if G is None else Unscaled(G, *rows[:2]) for G, rows in found]
        return loss, [*unscaled, *logits, divisor]  # type: ignore[list-item]  # scale() makes tensors of them

    def _unit_rows(self, prepare: Launch, X: Tensor, labels: Any, masked: bool, *constants: Any) -> tuple[Any, ...]:
        """Rows of one side as multiplied, 1 / |x| and labels, which are written anew if ``masked``."""
        kept = self.as_they_are and prepare is self.prepare[1]
        U = None if kept else X.new_empty(X.shape, dtype=self.operand)
        inverse_norm = X.new_empty(len(X), dtype=self.compute)
        shape = X.shape[:1] if labels is None else labels.shape
        written = X.new_empty(shape, dtype=torch.int64) if masked else None
        prepare(X, U, inverse_norm, labels, written, *constants)
        return X.detach() if U is None else U, inverse_norm, written if masked else labels

    def _results(self, new: Callable[..., Tensor]) -> dict[str, Any]:
        """Memory of all that epilogues write, by names of their arguments and of those of the last launch."""
        (n, m, _), kind, rows = self.sizes, self.formula.options.kind, self.chunks[0].last
        S, sums = new((rows, m)), new((2, self.parts if kind == "pair_hinge" else 1, n))
        found = {"S": S, "dS": S if self.operand == self.compute else new((rows, m), dtype=self.operand)}
        found |= zip(("positive", "negative", *SUMS[kind]), (*sums, *sums), strict=True)
        if kind == "pair_hinge":
            counts = new((2, self.parts, n), dtype=torch.int64)
            found |= zip(COUNTS, (*counts, *counts), strict=True)
        elif kind == "pair_lse" and self.parts > 1:
            found["partials"] = new((8, self.parts, rows))
        elif kind == "pair_contrast":
            found["dcoefficients"] = new((2, n))
            found |= zip(("dscale", "dbias"), found["dcoefficients"], strict=True)
            if self.formula.N in ("above", "pairs"):
                found |= zip(("positives", "has_negatives"), new((2, n)), strict=True)
        return found

    def _column_sums(self, named: dict[str, Any], sides: tuple[Tensor, Tensor], new: Callable[..., Tensor]) -> None:
        """Losses and log-sum-exps of the candidates over all anchors."""
        (U, V), (named["negative"], named["column_lse"]) = sides, new((2, len(sides[1])))
        turned = {"labels": named["candidate_labels"], "candidate_labels": named["labels"], "losses": named["negative"]}
        turned |= {"ids": named["candidate_ids"], "candidate_ids": named["ids"]}
        turned |= {"S": named["S"], "dS": named["dS"], "coefficients": named["coefficients"]}
        turned["lses"] = named["column_lse"]
        product(V, U.t(), named["S"])
        for launch in self.columns:
            launch(*[turned.get(name) for name in launch.varying])

    def _sweep(self, named: dict[str, Any], sides: tuple[Tensor, Tensor], gradients: Any) -> None:
        """All chunks; ``gradients`` of unit anchors and candidates, or None where none are wanted yet."""
        (U, V), S, dS, n = sides, named["S"], named["dS"], self.sizes[0]
        values, transposed = [named.get(name) for name in self.chunks[0].launches[0].varying], V.t()
        # A second reading of a whole matrix of cosines, which the first one has left there.
        kept = self.formula.N == "terms" and gradients is not None and len(S) == n
        kept = kept and not self.formula.options.euclidean
        dU, dV = gradients or (None, None)
        for first, last, launches in self.chunks:
            count = last - first
            rows, s, d = (U, S, dS) if count == n else (U[first:last], S[:count], dS[:count])
            if not kept:
                product(rows, transposed, s)
            for launch in launches:
                launch(*values)
            if U is V and count == n and dU is not None:
                multiply_both_sides(d, U, dU)
                continue
            dcandidates = dU if U is V else dV
            if dcandidates is not None and first == 0:
                product(d.t(), rows, dcandidates)
            elif dcandidates is not None:
                accumulate(dcandidates, d.t(), rows)
            if dU is not None and U is V:
                accumulate(dU[first:last], d, V)
            elif dU is not None:
                product(d, V, dU[first:last])

    def scale(self, gradients: list[Any], upstream: Tensor) -> list[Tensor | None]:
        """The gradients times the upstream gradient (); those of matrices go through the Jacobian here."""
        *unscaled, of_scale, of_bias, divisor = gradients
        factor = upstream if divisor is None else upstream / divisor
        with device.current(upstream):
            pairs = zip(unscaled, self.finish_rows, strict=True)
            found = [None if one is None else finish(one, factor) for one, finish in pairs]
        return [*found, *(None if one is None else one * factor for one in (of_scale, of_bias))]

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the sweep that is differentiable twice."""
        with torch.autocast(tensors[0].device.type, enabled=self.autocast):
            return self.general_loss(*tensors)


def pair_gpu_plan(
    formula: PairFormula, tensors: Sequence[Any], backend: str | None, itself: bool, general: Callable[..., Tensor]
) -> Plan | None:
    """The plan of these tensors as of :func:`pair_plan`; None where the launches do not read them as they are."""
    X, candidates, _, _, labels, _, weights, ids, _ = tensors
    wanted = tuple(torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in tensors[:4])
    if True not in wanted or not _are_launched(formula, itself, *tensors):
        return None
    others, compute, options = X if candidates is None else candidates, pair_dtype(X, candidates), formula.options
    if not isinstance(choose(BACKENDS, backend, X.device, compute), TritonPairs):
        return None
    if not passes_self_check(STEPS, X.device):
        return None
    (n, D), m, both = X.shape, len(others), (X,) if candidates is None else (X, candidates)
    operand = product_dtype(operand_dtype(compute, *both, autocast=True), compute, X.device)
    whole = way_of(X, candidates, Arithmetic(BACKENDS["triton"], compute, operand), options) == "batch"
    rows = n if whole else min(n, chunk_rows(n, m + 2 * D, X.device))
    if (both_sides := options == ContrastOptions("both")) and rows < n:
        return None
    types, names = (X.new_empty(0, dtype=compute), X.new_empty(0, dtype=operand)), COMMON + OWN[options.kind]
    sets = formula.sets(itself, labels, ids)
    chunks, parts, divided = [], 1, None
    for first in range(0, n, rows):
        place = ChunkPlace(first, min(rows, n - first), n, m, D)
        found, count = pair_launches(options, place, *types, sets, (1, 1), divided)
        if options.kind == "pair_hinge":  # all chunks in the parts of the first
            divided = count, found[0].fixed["per_part"]
        chunks.append(
            PairChunk(first, first + place.c, [Launch(one.kernel, one.grid, names, one.fixed) for one in found])
        )
        parts = max(parts, count)
    turned = pair_launches(options, ChunkPlace(0, m, m, n, D), *types, sets, (0, 0))[0] if both_sides else []
    as_they_are = candidates is not None and not both_sides and TritonRows().as_they_are(others, operand) is not None
    finish_others = finish_launch(m, D, others, others.dtype, others.stride() if as_they_are else None)
    prepare = partial(prepare_launch, formula, compute, sets.labels, weights is not None)
    return PairGpuPlan(
        wanted=wanted,
        formula=formula,
        sizes=(n, m, D),
        compute=compute,
        operand=operand,
        autocast=X.device.type != "meta" and torch.is_autocast_enabled(X.device.type),
        as_they_are=as_they_are,
        prepare=(prepare(X, False), prepare(others, True)),
        columns=[Launch(one.kernel, one.grid, names, one.fixed) for one in turned],
        chunks=chunks,
        parts=parts,
        finish=finish_step_launch(formula.N, n, parts if options.kind == "pair_hinge" else 1),
        finish_rows=(finish_launch(n, D, X, X.dtype), finish_others),
        general_loss=general,
    )


def _are_launched(formula: PairFormula, itself: bool, *tensors: Any) -> bool:
    """Whether the launches read these tensors as they are."""
    X, candidates, _, _, labels, candidate_labels, weights, *ids = tensors
    others, given = X if candidates is None else candidates, [tensor for tensor in tensors if tensor is not None]
    if (candidates is None and candidate_labels is not None) or any(tensor.device != X.device for tensor in given):
        return False
    for rows in (X, others):
        if rows.dim() != 2 or not rows.numel() or rows.shape[1] != X.shape[1] or rows.dtype not in FLOATING:
            return False
    if (itself and others.shape != X.shape) or (labels is None and len(others) != len(X)):
        return False
    if formula.options.euclidean and not (X.is_contiguous() and others.is_contiguous()):
        return False
    if weights is not None and (weights.shape != X.shape[:1] or not weights.is_contiguous()):
        return False
    if weights is not None and (weights.requires_grad or weights.dtype not in (*FLOATING, torch.bool)):
        return False
    return sets_are_read((len(X), len(others)), labels, candidate_labels, *ids)
