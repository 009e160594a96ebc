"""The plans of a Proxy-Anchor step on a GPU: lists of launches around the products, or with the first one fused."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.dispatch import apply_function, choose, passes_self_check, without_autocast
from robustdml_ops.backends.triton_launch import Launch, launch_with_scratch
from robustdml_ops.engine.fused_plan import LARGEST_EXPONENT, aligned, fused_launch, fused_serves
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
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.plan import Plan, Results
from robustdml_ops.engine.similarity_chunks import product
from robustdml_ops.engine.validation import is_number
from robustdml_ops.ops.anchor.backends import AnchorOptions, TritonAnchor, epilogue_launch
from robustdml_ops.ops.anchor.plan import log_weights
from robustdml_ops.ops.anchor.sweep import BACKENDS, AnchorSweep

STEPS = dict(BACKENDS)  # of the self-check of planned steps


@dataclass(frozen=True)
class AnchorGpuPlan(GpuPlan):
    """Settings: alpha, and the bias alpha · margin."""

    programs: int  # of the epilogues of all chunks

    def run(self, *tensors: Any) -> Results | None:
        """Samples, then for each chunk product, epilogue and both gradients; the loss. Values are never waited for."""
        X, P, labels, _, _, weights = tensors[:6]
        of = self.common
        with device.current(X), without_autocast(X.device):
            P, columns = P.detach(), X.shape[0]
            samples, inverse_norm, bias, counts, _ = self.prepared(X, labels, weights, biased=weights is not None)
            U, norm, into = self.memory(X, P)
            S = X.new_empty((of.rows, columns), dtype=of.compute)
            dS = S if of.operand == of.compute else torch.empty_like(S, dtype=of.operand)
            totals, transposed, left = X.new_empty(self.programs, dtype=torch.float64), samples.t(), None
            for piece in self.pieces:
                V, norms = self.chunk_of(piece, P, U, norm)
                count = len(V)
                s, ds = (S, dS) if count == of.rows else (S[:count], dS[:count])
                product(V, transposed, s)
                piece.epilogue(s, ds, V if of.as_they_are else None, labels, bias, counts, totals)
                left = self.gradients_of(piece, (ds, samples, V), V, None if of.as_they_are else norms, into)
            return self.results(totals, (samples, inverse_norm), into, left)

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the sweep that is differentiable twice."""
        X, P, labels, _, _, weights = tensors[:6]
        (alpha, constant), of = self.settings, self.common
        sets = LabelSets.of(labels)
        bias, present = log_weights(X.new_full((len(X),), constant, dtype=of.compute), weights)
        count = sets.count(present, of.compute)
        one = bias.new_ones(())
        scales = (one / count, one / len(P))
        settings = ("triton", of.operand, [False, *self.wanted, False], None, AnchorOptions(alpha, sets))
        loss: Tensor
        loss, *_ = apply_function(AnchorSweep, X, P, bias, None, None, *scales, *settings)
        return loss


@dataclass(frozen=True)
class FusedAnchorPlan(AnchorGpuPlan):
    """Terms and sums of each chunk by one kernel; dL/dS is a term times a factor of its class."""

    positives: tuple[Launch, ...]  # of the chunks: their terms, which the sums leave out

    def run(self, *tensors: Any) -> Results | None:
        """As the plan without fusion; None where a tensor descriptor can't read the proxies."""
        X, P, labels, _, _, weights = tensors[:6]
        of, new = self.common, X.new_empty
        if not aligned(of, P):
            return None
        with device.current(X), without_autocast(X.device):
            P, (B, _, D) = P.detach(), of.shape
            samples, inverse_norm, bias, counts, target = self.prepared(X, labels, weights, weights is not None, P)
            U, norm, into = self.memory(X, P)
            E, totals, left = new((of.rows, B), dtype=of.operand), new(self.programs, dtype=torch.float64), None
            scaled = None if into[0] is None else new((of.rows, D), dtype=of.operand)
            sums, factors = new((2, of.rows), dtype=of.compute)
            for piece, positives in zip(self.pieces, self.positives, strict=True):
                V, norms = self.chunk_of(piece, P, U, norm)
                e, W = E[: len(V)], None if scaled is None else scaled[: len(V)]
                launch_with_scratch(piece.epilogue, V, samples, norms, labels, sums, e, bias, factors, W, totals)
                positives(e, sums, target, labels, bias, counts, totals)
                left = self.gradients_of(piece, (e, samples, W), V, factors, into)
            return self.results(totals, (samples, inverse_norm), into, left)


def anchor_gpu_plan(
    X: Any, P: Any, labels: Any, weights: Any, alpha: Any, bias: Any, backend: str | None
) -> Plan | None:
    """The plan of these tensors; None where the launches do not read them as they are, or settings are wrong."""
    if not is_number(alpha) or not is_number(bias) or not gpu_plan_serves(X, P, labels, weights):
        return None
    common = common_of(X, P)
    if not 0 < alpha * torch.finfo(common.compute).eps <= 1:
        return None
    chosen = choose(BACKENDS, backend, X.device, common.compute)
    if not isinstance(chosen, TritonAnchor) or not passes_self_check(STEPS, X.device):
        return None
    finish_X, finish_P, of_chunks = finish_launches(common, X, P)
    alpha, bias = float(alpha), float(bias)
    plain = weights is None or weights.dtype == torch.bool  # others may be as large as numbers are
    fused = plain and alpha + abs(bias) <= LARGEST_EXPONENT and fused_serves(common, P, columns=False)
    prepare = prepare_launch(common, X, True, 0.0 if fused else bias, (P, alpha) if fused else None)
    pieces, positives, programs = [], [], 0
    for first, last in chunks_of(common):
        n, place = last - first, Place(first, last - first, programs)
        if fused:
            epilogue, of_positives = _fused(common, P, (alpha, bias), prepare.grid[0], place)
            positives.append(of_positives)
            programs += int(of_positives.fixed["first_place"]) - place.first_place + of_positives.grid[0]
        else:
            epilogue = _epilogue(common, X, P, (alpha, bias), prepare.grid[0], place)
            programs += epilogue.grid[0]
        normalize = normalize_launch(common, P, n) if fused or not common.as_they_are else None
        pieces.append(Piece(first, last, normalize, epilogue, of_chunks[n]))
    given: dict[str, Any] = {
        "wanted": (X.requires_grad, P.requires_grad),
        "common": common,
        "settings": (alpha, bias),
        "prepare": prepare,
        "pieces": tuple(pieces),
        "finish": (finish_X, finish_P),
        "add": add_launch(programs),
        "programs": programs,
    }
    return FusedAnchorPlan(**given, positives=tuple(positives)) if fused else AnchorGpuPlan(**given)


def _fused(common: Common, P: Tensor, settings: tuple[float, float], parts: int, place: Place) -> tuple[Launch, Launch]:
    """The terms of a chunk, and those of its positives; ``parts``: of |P⁺|."""
    from robustdml_ops.ops.anchor.positive_kernels import positive_terms as kernel

    (B, C, _), (alpha, bias) = common.shape, settings
    height = math.exp(bias)
    terms = fused_launch(common, P, place, True, {"scale": alpha, "height": height, "share": 1 / C})
    before = place.first_place + -(-place.classes // int(terms.fixed["BLOCK_C"]))
    numbers = {"c": place.classes, "B": B, "first": place.first, "first_place": before}
    numbers |= {"parts": parts, "classes": C}
    tile = device.launch(BLOCK_R=16, BLOCK_B=128, num_warps=4, num_stages=1)
    tensors = ("E", "sums", "target", "labels", "bias", "counts", "totals")
    fixed = {**numbers, "height": height, **tile}
    return terms, Launch(kernel, device.grid_of(B, tile["BLOCK_R"]), tensors, fixed)


def _epilogue(common: Common, X: Tensor, P: Tensor, settings: tuple[float, float], parts: int, place: Place) -> Launch:
    """The epilogue of a chunk; ``parts``: of |P⁺|."""
    from robustdml_ops.ops.anchor.kernels import anchor_lse as kernel

    (B, C, D), (first, c, programs), (alpha, bias) = common.shape, place, settings
    tile = epilogue_launch(B, common.compute, True, False, device.tile_of("anchor_lse", X))
    tensors = ("S", "dS", "V", "labels", "positive_bias", "counts", "totals")
    absent = ["values", "negative_bias", "anchor_bias", "drop_similar_negatives", "upstream_positive"]
    absent += ["upstream_negative", "lse_positive", "lse_negative", "bias_partials", "label_weights"]
    row_stride, column_stride = P.stride() if common.as_they_are else (0, 0)
    numbers = {"c": c, "B": B, "first": first, "first_program": programs, "parts": parts, "proxies": C, "D": D}
    strides = {"row_stride": row_stride, "column_stride": column_stride, "anchor_stride": 0, "candidate_stride": 0}
    strides |= {"upstream_positive_stride": 0, "upstream_negative_stride": 0}
    options = {"alpha": alpha, "bias": bias, "beta": 0.0, "threshold": 0.0, "labels_each": 1, "ARE_LOGITS": False}
    block = {"BLOCK_D": device.block_of(D, int(tile["BLOCK_B"]))}
    fixed = {**dict.fromkeys(absent), **numbers, **strides, **options, **block, **tile}
    return Launch(kernel, device.grid_of(c, tile["BLOCK_C"]), tensors, fixed)
