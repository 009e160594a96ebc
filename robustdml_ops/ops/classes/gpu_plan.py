"""The plan of a softmax step on a GPU: a list of launches around the saved terms of the log-sum-exp."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.dispatch import choose, passes_self_check, without_autocast
from robustdml_ops.backends.triton_launch import Launch, launch_with_scratch
from robustdml_ops.engine.fused_plan import aligned, fused_launch, fused_serves
from robustdml_ops.engine.gpu_plan import (
    Common,
    GpuPlan,
    Piece,
    Place,
    add_launch,
    chunks_of,
    common_of,
    finish_launches,
    gpu_plan_serves,
    normalize_launch,
    prepare_launch,
)
from robustdml_ops.engine.plan import Plan, Results
from robustdml_ops.engine.rows.backends import rows_launch
from robustdml_ops.engine.similarity_chunks import bytes_to_save, product
from robustdml_ops.engine.validation import is_number
from robustdml_ops.ops.classes.backends import BACKENDS, TritonClasses, epilogue_launch, slices_of
from robustdml_ops.ops.classes.labels_part import labels_launch
from robustdml_ops.ops.classes.plan import ClassFormula, margins_serve
from robustdml_ops.ops.classes.sweep import LARGEST_LOGIT, TERM_UNIT, ClassProblem, largest_sum

STEPS = dict(BACKENDS)  # of the self-check of planned steps


@dataclass(frozen=True)
class ClassGpuPlan(GpuPlan):
    """Settings: a ClassFormula. P may be given by columns, (D, C); margins, or None, are at place 6."""

    general_loss: Callable[..., Tensor] = field(repr=False)
    columns: bool
    parts: int  # of the sums of all chunks
    finish_samples: Launch
    exact_labels: Launch | None  # of dL/dP of a chunk; None: terms have all digits
    fused: bool  # whether the epilogues make the product, too

    def run(self, *tensors: Any) -> Results | None:
        """Samples, product and terms of each chunk; losses; both gradients of each chunk. Nothing is waited for.

        None where a tensor descriptor can't read the proxies.
        """
        X, P, labels, _, _, weights, margins = tensors[:7]
        of, new = self.common, X.new_empty
        B, C, _ = of.shape
        if self.fused and not aligned(of, P):
            return None
        with device.current(X), without_autocast(X.device):
            P = P.detach().t() if self.columns else P.detach()
            prepared = self.prepared(X, labels, weights, biased=False, P=P if self.fused else None)
            samples, inverse_norm, _, counts, target = prepared
            U, norm, into = self.memory(X, P)
            S = None if self.fused else new((of.rows, B), dtype=of.compute)
            E, partials = new((C, B), dtype=of.operand), new((self.parts, 2, B), dtype=of.compute)
            target = torch.empty_like(inverse_norm) if target is None else target
            transposed, chunks = samples.t(), []
            for piece in self.pieces:
                V, norms = self.chunk_of(piece, P, U, norm)
                whole = len(V) == C
                e = E if whole else E[piece.first : piece.last]
                if S is None:
                    launch_with_scratch(piece.epilogue, V, samples, norms, labels, partials, e)
                else:
                    s = product(V, transposed, S if whole else S[: len(V)])
                    piece.epilogue(s, norms if of.as_they_are else None, labels, target, partials, e)
                chunks.append((piece, e, V))
            factor, weighted = torch.empty_like(inverse_norm), torch.empty_like(samples)
            losses = new(self.finish_samples.grid[0], dtype=torch.float64)
            rows = P if of.as_they_are else None
            vectors = (partials, target, labels, weights, margins, counts)
            exact, slopes = self.exact_labels, torch.empty_like(factor)
            self.finish_samples(*vectors, X, inverse_norm, rows, E, factor, slopes, weighted, losses)

            def complete(dV: Tensor, e: Tensor, first: int) -> None:
                if exact is not None:
                    exact(dV, e, weighted, X, labels, inverse_norm, slopes, first, len(e))

            left = None
            for piece, e, V in chunks:
                if U is not None and len(chunks) > 1:
                    V, norm = self.chunk_of(piece, P, U, norm)  # those of the last chunk are there
                of_rows = None if of.as_they_are else norm
                left = self.gradients_of(piece, (e, weighted, V), V, of_rows, into, complete)
            return self.results(losses, (samples, factor), into, left)

    def scale(self, gradients: list[Any], upstream: Tensor) -> list[Tensor | None]:
        """As of all plans; the gradient of the proxies in the layout of the parameter."""
        of_X, of_P = super().scale(gradients, upstream)
        return [of_X, of_P.t() if self.columns and of_P is not None else of_P]

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the op that is differentiable twice."""
        with torch.autocast(tensors[0].device.type, enabled=self.common.autocast):
            return self.general_loss(*tensors)


def class_gpu_plan(
    formula: ClassFormula,
    X: Any,
    P: Any,
    labels: Any,
    weights: Any,
    margins: Any,
    *,
    columns: bool,
    backend: str | None,
    general: Callable[..., Tensor],
) -> Plan | None:
    """The plan of these tensors, P (C, D) or by ``columns`` (D, C); None where the launches do not serve them."""
    if formula.pooling != "none" or P.dim() != 2 or not is_number(formula.scale) or not is_number(formula.margin):
        return None
    wanted = (X.requires_grad, P.requires_grad)
    if columns:
        P = P.t()
    if not gpu_plan_serves(X, P, labels, weights) or not margins_serve(margins, formula, labels, len(P)):
        return None
    if margins is not None and not margins.is_contiguous():
        return None
    common = common_of(X, P)
    terms = common.shape[0] * common.shape[1] * common.operand.itemsize
    if (
        common.compute != torch.float32
        or not 0 < abs(formula.scale) <= LARGEST_LOGIT
        or terms > bytes_to_save(X.device)
    ):
        return None
    chosen = choose(BACKENDS, backend, X.device, common.compute)
    if not isinstance(chosen, TritonClasses) or not passes_self_check(STEPS, X.device):
        return None
    scale, fused = float(formula.scale), fused_serves(common, P, columns=True)
    prepare = prepare_launch(common, X, False, 0.0, (P, scale) if fused else None)
    finish_X, finish_P, of_chunks = finish_launches(common, X, P)
    pieces, parts = [], 0
    for first, last in chunks_of(common):
        n, place = last - first, Place(first, last - first, parts)
        if fused:
            unit = TERM_UNIT if common.operand.itemsize < 4 else 1.0
            epilogue = fused_launch(common, P, place, False, {"scale": scale, "unit": unit})
            parts += int(epilogue.fixed["parts"])
        else:
            epilogue = _epilogue(common, X, scale, place)
            parts += epilogue.grid[1]
        pieces.append(Piece(first, last, normalize_launch(common, P, n), epilogue, of_chunks[n]))
    finish_samples = _finish_samples(common, X, P, formula, (parts, prepare.grid[0]))
    return ClassGpuPlan(
        wanted=wanted,
        common=common,
        settings=(formula,),
        prepare=prepare,
        pieces=tuple(pieces),
        finish=(finish_X, finish_P),
        add=add_launch(finish_samples.grid[0]),
        general_loss=general,
        columns=columns,
        parts=parts,
        finish_samples=finish_samples,
        exact_labels=None if common.operand == common.compute else labels_launch(X, (common.shape[2], 1)),
        fused=fused,
    )


def _epilogue(common: Common, X: Tensor, scale: float, place: Place) -> Launch:
    """The terms of a chunk and their sums."""
    from robustdml_ops.ops.classes.kernels import class_lse as kernel

    B, (first, c, parts_before) = common.shape[0], place
    tile = epilogue_launch(B, common.compute, device.tile_of("class_lse", X))
    parts, per_part = slices_of(c, int(tile["BLOCK_C"]), 64)
    fixed = {
        **dict.fromkeys((*ClassProblem.absent(), "weighted", "own_similarities", "nearest", "above")),
        **{"c": c, "H": 1, "B": B, "K": 1, "first": first, "scale": None},
        **{
            "per_part": per_part,
            "first_part": parts_before,
            "scale_stride": 0,
            "gamma": 1.0,
            "scale_number": scale,
            "POOLING": "none",
        },
        **tile,
    }
    tensors = ("S", "inverse_norm", "labels", "target", "partials", "E")
    return Launch(kernel, (-(-B // int(tile["BLOCK_B"])), parts), tensors, fixed)


def _finish_samples(common: Common, X: Tensor, P: Tensor, formula: ClassFormula, parts: tuple[int, int]) -> Launch:
    """Losses and labels' terms; ``parts``: of the sums, and of the number of samples."""
    from robustdml_ops.ops.classes.sample_kernels import finish_samples as kernel

    (B, C, D), tile = common.shape, rows_launch(common.shape[2], device.tile_of("rows", X))
    strides = ("row_stride", "column_stride", "X_row_stride", "X_column_stride")
    fixed = {
        **{"B": B, "D": D, "classes": C, "parts": parts[0], "count_parts": parts[1], "most": largest_sum(C)},
        **{"scale": float(formula.scale), "margin": float(formula.margin), "margin_unit": formula.margin_unit},
        **{"MARGIN": formula.margin_kind, "CLASS_MARGINS": formula.class_margins, "EXCLUDE": formula.exclude_target},
        **{"BLOCK_P": device.block_of(parts[0], 64), **dict(zip(strides, (*P.stride(), *X.stride()), strict=True))},
        **tile,
    }
    tensors = ("partials", "target", "labels", "weights", "margins", "counts", "X", "inverse_norm", "P", "E")
    return Launch(
        kernel, device.grid_of(B, tile["BLOCK_R"]), (*tensors, "factor", "slopes", "weighted", "losses"), fixed
    )
