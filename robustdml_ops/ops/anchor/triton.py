"""The anchor log-sum-exp in Triton: of a chunk, or of all proxies with their similarities in one launch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import (
    Launch,
    block_of,
    current,
    fused_pays,
    grid_of,
    launch,
    rows_are_vectors,
    tile_of,
)
from robustdml_ops.engine import precision
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.rows.triton import TritonRows
from robustdml_ops.engine.similarity_chunks import Similarities, row_stride
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorChunk, AnchorProblem, ConfidenceSets
from robustdml_ops.ops.anchor.result import SweepResult
from robustdml_ops.ops.anchor.small_step import serves, small_step

_OPERANDS = (torch.float32, torch.bfloat16, torch.float16)


class TritonAnchor(TritonRows, AnchorBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def anchor_lse(self, chunk: AnchorChunk, problem: AnchorProblem) -> None:
        """As :meth:`AnchorBackend.anchor_lse`."""
        from robustdml_ops.ops.anchor.kernels import anchor_lse as kernel

        S, sets = chunk.S, problem.sets
        c, B = S.shape
        values = None if isinstance(sets, LabelSets) else sets.values(chunk.first, chunk.last, S.dtype)
        by_anchor = values is not None and values.stride(0) == 1
        parameters = epilogue_launch(B, S.dtype, values is None, by_anchor, tile_of("anchor_lse", S))
        grid = grid_of(c, parameters["BLOCK_C"])
        # Sums over anchors cross programs. Each leaves its part and torch adds the parts, in the same order every time.
        bias_partials = None if chunk.dpositive_bias is None else S.new_empty((*grid, 2, B))
        with current(S):
            kernel[grid](
                S=S,
                dS=S if chunk.dS is None else chunk.dS,
                values=values,
                upstream_positive=chunk.upstream_positive,
                upstream_negative=chunk.upstream_negative,
                upstream_positive_stride=row_stride(chunk.upstream_positive),
                upstream_negative_stride=row_stride(chunk.upstream_negative),
                lse_positive=chunk.lse_positive,
                lse_negative=chunk.lse_negative,
                bias_partials=bias_partials,
                c=c,
                B=B,
                first=chunk.first,
                ARE_LOGITS=not isinstance(sets, LabelSets) and sets.are_logits,
                **problem.distinct_arguments(chunk.first, chunk.last),
                **_set_arguments(sets, values),
                **parameters,
            )
        if bias_partials is not None and chunk.dpositive_bias is not None and chunk.dnegative_bias is not None:
            dpositive_bias, dnegative_bias = bias_partials.sum(0)
            chunk.dpositive_bias += dpositive_bias
            chunk.dnegative_bias += dnegative_bias

    def sweep(
        self,
        similarities: Similarities,
        problem: AnchorProblem,
        upstream: tuple[Tensor, Tensor] | None,
        result: SweepResult,
    ) -> bool:
        """As :meth:`AnchorBackend.sweep`: a small step in one launch, where the table of cards has it so."""
        if upstream is None or not serves(similarities, problem, upstream, result):
            return False
        small_step(similarities, problem, upstream, result)
        return True

    def fused_forward(self, X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor] | None:
        """From one launch; None where the kernel doesn't serve.

        It has no float64, no confidences that are a product themselves, and no rows longer than pay.
        """
        sets = problem.sets
        if X.dtype not in _OPERANDS or problem.positive_bias.dtype != torch.float32 or not fused_pays(X):
            return None
        if not isinstance(sets, LabelSets) and sets.are_logits:
            return None
        return fused_anchor_lse(X, P, problem)


def fused_anchor_lse(X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor]:
    """Both log-sum-exps of every proxy in one launch; nothing else is written."""
    from robustdml_ops.ops.anchor.fused_kernel import fused_anchor_lse as kernel

    (B, D), C, sets = X.shape, len(P), problem.sets
    # The confidences as they are: a copy in the compute type would be of size B×C.
    values = None if isinstance(sets, LabelSets) or sets.confidences is None else sets.confidences.t()
    input_precision = precision.input_precision(X.device)
    vectors, tile = rows_are_vectors(P), tile_of("fused_anchor_lse", X)
    parameters = fused_launch(B, D, X.dtype, values is None, input_precision, vectors, tile)
    lse_positive, lse_negative = problem.positive_bias.new_empty((2, C))
    with current(X):
        kernel[grid_of(C, parameters["BLOCK_C"])](
            X=X,
            P=P,
            values=values,
            lse_positive=lse_positive,
            lse_negative=lse_negative,
            B=B,
            C=C,
            row_stride=P.stride(0),
            column_stride=P.stride(1),
            D=D,
            **problem.distinct_arguments(0, C),
            **_set_arguments(sets, values),
            **parameters,
        )
    return lse_positive, lse_negative


def _set_arguments(sets: LabelSets | ConfidenceSets, values: Tensor | None) -> dict[str, Any]:
    """What both kernels take of the sets; what labels don't need is 0."""
    anchor_stride, candidate_stride = (0, 0) if values is None else values.stride()
    return {
        "labels": sets.labels if isinstance(sets, LabelSets) else None,
        "beta": 0.0 if isinstance(sets, LabelSets) else float(sets.beta),
        "threshold": 0.0 if isinstance(sets, LabelSets) else float(sets.threshold),
        "anchor_stride": anchor_stride,
        "candidate_stride": candidate_stride,
    }


def epilogue_launch(
    B: int, compute: torch.dtype, labels: bool, anchors_contiguous: bool, tile: Mapping[str, int]
) -> Launch:
    """Tile of the epilogue: by default 16 elements of S a thread beside as many of two sums; a quarter in float64.

    Half as many with confidences, and where rows are no vectors, whose elements each have an address of their own. The
    second pass over the rows of a program finds them in L1. Few rows a program fill the GPU with chunks of a few
    thousand anchors. Confidences stored as (B, C) are contiguous over the anchors: 16 anchors make whole 32-byte
    sectors of them.
    """
    BLOCK_B = block_of(B, tile["candidates"] // (4 if anchors_contiguous else 1))
    elements = tile["elements"] // (4 if compute == torch.float64 else 1 if labels and B % 16 == 0 else 2)
    return launch(BLOCK_C=elements // BLOCK_B, BLOCK_B=BLOCK_B, num_warps=tile["num_warps"], num_stages=1)


def fused_launch(
    B: int,
    D: int,
    operand: torch.dtype,
    labels: bool,
    input_precision: str,
    vectors: bool,
    tile: Mapping[str, int],
) -> Launch:
    """Tile of the fused forward.

    Up to D = 128 a tile holds whole rows of proxies: they are read and normalised once and meet the whole batch. Longer
    rows come in steps of 32 columns, again for every tile of candidates. With labels and half-precision operands Hopper
    has room for the exponentials beside 64 accumulators a thread: square tiles for whole rows, wide ones where rows are
    read again. Elsewhere, and with confidences or TF32 operands, registers allow half or a quarter of that.
    IEEE float32 runs on the ordinary cores, where small tiles keep the operands in registers. So do rows that are no
    vectors, whose elements each have an address of their own, and operands that are two of TF32 each.
    """
    if operand == torch.float32 and input_precision == "ieee":
        return launch(BLOCK_C=64, BLOCK_B=64, BLOCK_D=16, num_warps=4, num_stages=2, input_precision=input_precision)
    if not vectors or (operand == torch.float32 and input_precision == "tf32x3"):
        return launch(BLOCK_C=64, BLOCK_B=64, BLOCK_D=16, num_warps=8, num_stages=2, input_precision=input_precision)
    anchors, candidates = 64, 64
    if labels and operand.itemsize == 2:
        long = "" if D <= 128 else "long_"
        anchors, candidates = tile[f"{long}anchors"], tile[f"{long}candidates"]
    return launch(
        BLOCK_C=anchors,
        BLOCK_B=block_of(B, candidates),
        BLOCK_D=block_of(D, 128) if D <= 128 else 32,
        num_warps=tile["num_warps"],
        num_stages=3 if operand.itemsize == 2 else 2,
        input_precision=input_precision,
    )
