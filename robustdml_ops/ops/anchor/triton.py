"""The anchor log-sum-exp of a chunk in Triton."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import Launch, block_of, current, grid_of, launch, tile_of
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.rows.triton import TritonRows
from robustdml_ops.ops.anchor.problem import (
    AnchorBackend,
    AnchorChunk,
    AnchorProblem,
    ConfidenceSets,
    upstream_arguments,
)


class TritonAnchor(TritonRows, AnchorBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def anchor_lse(self, chunk: AnchorChunk, problem: AnchorProblem) -> None:
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
                lse_positive=chunk.lse_positive,
                lse_negative=chunk.lse_negative,
                bias_partials=bias_partials,
                c=c,
                B=B,
                first=chunk.first,
                ARE_LOGITS=not isinstance(sets, LabelSets) and sets.are_logits,
                **upstream_arguments(chunk.upstream),
                **problem.distinct_arguments(chunk.first, chunk.last),
                **set_arguments(sets, values),
                **parameters,
            )
        if bias_partials is not None and chunk.dpositive_bias is not None and chunk.dnegative_bias is not None:
            dpositive_bias, dnegative_bias = bias_partials.sum(0)
            chunk.dpositive_bias += dpositive_bias
            chunk.dnegative_bias += dnegative_bias


def set_arguments(sets: LabelSets | ConfidenceSets, values: Tensor | None) -> dict[str, Any]:
    """Arguments of both kernels that describe the sets; numbers that labels do not need are 0."""
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
    """Tile of the epilogue: 16 elements of S a thread; a quarter in float64, half with confidences or unaligned rows.

    Confidences stored as (B, C) are contiguous over the anchors: 16 anchors make whole 32-byte sectors of them.
    """
    BLOCK_B = block_of(B, tile["candidates"] // (4 if anchors_contiguous else 1))
    elements = tile["elements"] // (4 if compute == torch.float64 else 1 if labels and B % 16 == 0 else 2)
    return launch(BLOCK_C=elements // BLOCK_B, BLOCK_B=BLOCK_B, num_warps=tile["num_warps"], num_stages=1)
