"""The plan of a Proxy-Anchor step on a GPU: a list of launches."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
from robustdml_ops.engine.plan import Plan, Results
from robustdml_ops.engine.similarity_chunks import product
from robustdml_ops.engine.validation import is_number
from robustdml_ops.ops.anchor.backends import AnchorOptions, TritonAnchor, epilogue_launch
from robustdml_ops.ops.anchor.sweep import BACKENDS, AnchorSweep

STEPS = dict(BACKENDS)  # of the self-check of planned steps


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
        sets, bias, present = LabelSets.of(labels), X.new_full((len(X),), constant, dtype=of.compute), None
        if weights is not None:
            weights = weights.to(of.compute)
            present = weights > 0
            bias = (bias + weights.masked_fill(~present, 1).log()).masked_fill(~present, -torch.inf)
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
    absent = [
        "values",
        "negative_bias",
        "anchor_bias",
        "drop_similar_negatives",
        "upstream_positive",
        "upstream_negative",
    ]
    absent += ["lse_positive", "lse_negative", "bias_partials", "label_weights"]
    row_stride, column_stride = P.stride() if common.as_they_are else (0, 0)
    fixed = {
        **dict.fromkeys(absent),
        **{"c": c, "B": B, "first": first, "first_program": programs, "parts": parts, "proxies": C, "D": D},
        **{
            "row_stride": row_stride,
            "column_stride": column_stride,
        },
        **{"anchor_stride": 0, "candidate_stride": 0, "labels_each": 1, "ARE_LOGITS": False},
        **{"upstream_positive_stride": 0, "upstream_negative_stride": 0},
        **{
            "alpha": alpha,
            "beta": 0.0,
            "threshold": 0.0,
            "bias": bias,
            "BLOCK_D": device.block_of(D, int(tile["BLOCK_B"])),
        },
        **tile,
    }
    return Launch(kernel, device.grid_of(c, tile["BLOCK_C"]), tensors, fixed)
