"""Plans of a Proxy-Anchor step: on the CPU one native call, on a GPU a list of launches."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.dispatch import apply_function, choose, passes_self_check, without_autocast
from robustdml_ops.backends.triton_launch import Launch
from robustdml_ops.engine.gpu_plan import (
    Common,
    GpuPlan,
    Piece,
    Unscaled,
    add_launch,
    chunks_of,
    common_of,
    finish_launches,
    gpu_plan_serves,
    normalize_launch,
    prepare_launch,
)
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.plan import Plan, Results, native_weights_serve
from robustdml_ops.engine.rows.backends import gradient_buffer
from robustdml_ops.engine.similarity_chunks import product
from robustdml_ops.engine.validation import is_number
from robustdml_ops.ops.anchor.backends import AnchorOptions, NativeAnchor, TritonAnchor, epilogue_launch
from robustdml_ops.ops.anchor.sweep import BACKENDS, AnchorSweep

STEPS = dict(BACKENDS)  # of the self-check of planned steps


def _log_weights(bias: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Biases (B,) plus log weights, and which samples are present (None: all)."""
    if weights is None:
        return bias, None
    weights = weights.to(bias.dtype)
    present = weights > 0
    return (bias + weights.masked_fill(~present, 1).log()).masked_fill(~present, -torch.inf), present


@dataclass(frozen=True)
class AnchorPlan(Plan):
    """A step on the CPU by lanes. Tensors: embeddings, proxies, labels; at places 5, 6 weights and margins or None."""

    alpha: float
    bias: float  # α · margin, where margins are not learnt
    regularization: float  # λ of λ/mean(margins), where they are
    chunk_rows: int
    threads: int
    dtype: torch.dtype

    def run(self, *tensors: Any) -> Results | None:
        """One native call; None for a label out of range, NaN, a weight below 0, or rows of extreme length."""
        X, P, labels, _, _, weights, margins = tensors[:7]
        loss, dX, dP, dmargins = X.new_empty(()), None, None, None
        if self.wanted[0]:
            dX = torch.empty_like(X)
        if self.wanted[1]:
            dP = gradient_buffer(P)
        if self.wanted[6:]:
            dmargins = torch.empty_like(margins)
        if weights is not None:
            weights = weights.to(self.dtype).contiguous()
        served = getattr(module.library, f"anchor_step_{module.SUFFIX[self.dtype]}")(
            module.matrix_product(self.dtype),
            module.set_threads(),
            X.data_ptr(),
            labels.data_ptr(),
            0 if weights is None else weights.data_ptr(),
            P.data_ptr(),
            *X.shape,
            len(P),
            self.alpha,
            self.bias,
            0 if margins is None else margins.data_ptr(),
            0 if margins is None else len(margins),
            self.regularization,
            self.chunk_rows,
            self.threads,
            0 if dX is None else dX.data_ptr(),
            0 if dP is None else dP.data_ptr(),
            0 if dmargins is None else dmargins.data_ptr(),
            loss.data_ptr(),
        )
        if not served:
            return None
        return loss, [dX, dP] if dmargins is None else [dX, dP, None, None, None, None, dmargins]

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the sweep that is differentiable twice."""
        X, P, labels, _, _, weights, margins = tensors[:7]
        sets, bias = LabelSets.of(labels), X.new_full((len(X),), self.bias)
        if margins is not None:
            bias = self.alpha * (margins[labels] if len(margins) > 1 else margins.expand(len(X)))
        bias, present = _log_weights(bias, weights)
        scales = [X.new_full((), 1 / float(count)) for count in (sets.count(present, X.dtype), len(P))]
        want = [False, True, True, margins is not None]
        settings = ("native", X.dtype, want, None, AnchorOptions(self.alpha, sets))
        loss: Tensor
        loss, *_ = apply_function(AnchorSweep, X, P, bias, None, None, *scales, *settings)
        return loss if margins is None else loss + self.regularization / margins.mean()


def anchor_plan(
    X: Any,
    P: Any,
    labels: Any,
    weights: Any,
    alpha: Any,
    bias: Any,
    backend: str | None,
    margins: Any = None,
    regularization: Any = 0.0,
) -> Plan | None:
    """The plan of these tensors; None where the native call does not read them as they are, or settings are wrong."""
    if not is_number(alpha) or not is_number(bias) or not is_number(regularization):
        return None
    if margins is not None and (margins.dtype != X.dtype or margins.shape not in ((1,), P.shape[:1])):
        return None
    dtype = X.dtype
    if not X.is_cpu or module.matrix_product(dtype) == 0 or not 0 < alpha * torch.finfo(dtype).eps <= 1:
        return None
    if not native_weights_serve(weights, X):
        return None
    if X.dim() != 2 or labels.shape != X.shape[:1] or X.shape[1:] != P.shape[1:] or not X.numel() or not P.numel():
        return None
    same = dtype == P.dtype and labels.dtype == torch.int64
    given = (X, P, labels) if margins is None else (X, P, labels, margins)
    if not same or not all(tensor.is_cpu and tensor.is_contiguous() for tensor in given):
        return None
    if torch.is_autocast_enabled("cpu") or not isinstance(choose(BACKENDS, backend, X.device, dtype), NativeAnchor):
        return None
    (B, D), C, threads = X.shape, P.shape[0], torch.get_num_threads()
    rows = min(C, module.lane_rows(C, (B + 2 * D) * X.itemsize, threads))
    graded = torch.is_grad_enabled()
    wanted: tuple[bool, ...] = (graded and X.requires_grad, graded and P.requires_grad)
    if margins is not None and graded and margins.requires_grad:
        wanted = (*wanted, False, False, False, False, True)  # margins are at place 6
    return AnchorPlan(wanted, float(alpha), float(bias), float(regularization), rows, threads, dtype)


@dataclass(frozen=True)
class AnchorGpuPlan(GpuPlan):
    """Settings: alpha, and the bias alpha · margin."""

    programs: int  # of the epilogues of all chunks

    def run(self, *tensors: Any) -> Results:
        """Samples, then for each chunk product, epilogue and both gradients; the loss. Values are never waited for."""
        X, P, labels, _, _, weights = tensors[:6]
        of = self.common
        with device.current(X), without_autocast(X.device):
            P, columns = P.detach(), X.shape[0]
            samples, inverse_norm, bias, counts = self.prepared(X, labels, weights, biased=weights is not None)
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
                left = self.gradients_of(piece, (ds, samples), V, norms, into)
            loss = self.loss(totals)
        dX, _, dP = into
        of_X = None if dX is None else Unscaled(dX, samples, inverse_norm)
        return loss, [of_X, left if dP is None else dP]  # type: ignore[list-item]  # scale() makes tensors of them

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the sweep that is differentiable twice."""
        X, P, labels, _, _, weights = tensors[:6]
        (alpha, constant), of = self.settings, self.common
        sets = LabelSets.of(labels)
        bias, present = _log_weights(X.new_full((len(X),), constant, dtype=of.compute), weights)
        count = sets.count(present, of.compute)
        one = bias.new_ones(())
        scales = (one / count, one / len(P))
        settings = ("triton", of.operand, [False, *self.wanted, False], None, AnchorOptions(alpha, sets))
        loss: Tensor
        loss, *_ = apply_function(AnchorSweep, X, P, bias, None, None, *scales, *settings)
        return loss


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
    prepare = prepare_launch(common, X, True, float(bias))
    pieces, programs = [], 0
    for first, last in chunks_of(common):
        n = last - first
        epilogue = _epilogue(common, X, P, (float(alpha), float(bias)), prepare.grid[0], (first, n, programs))
        normalize = None if common.as_they_are else normalize_launch(common, P, n)
        pieces.append(Piece(first, last, normalize, epilogue, of_chunks[n]))
        programs += epilogue.grid[0]
    return AnchorGpuPlan(
        wanted=(X.requires_grad, P.requires_grad),
        common=common,
        settings=(float(alpha), float(bias)),
        prepare=prepare,
        pieces=tuple(pieces),
        finish=(finish_X, finish_P),
        add=add_launch(programs),
        programs=programs,
    )


def _epilogue(
    common: Common, X: Tensor, P: Tensor, settings: tuple[float, float], parts: int, place: tuple[int, int, int]
) -> Launch:
    """The epilogue of a chunk; ``place``: its first class, its classes, and the epilogues' programs before it."""
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
