"""The anchor log-sum-exp of a chunk on each backend."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends import triton_device as device
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.rows.backends import NativeRows, TritonRows
from robustdml_ops.engine.rows.lengths import log_one_plus_sum
from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorProblem, AnchorSums, ConfidenceSets


class EagerAnchor(AnchorBackend):
    """On every device, without a compiler."""

    def anchor_lse(self, chunk: Chunk, sums: AnchorSums, problem: AnchorProblem) -> None:
        S = chunk.S
        assert sums.lse_positive is not None and sums.lse_negative is not None
        positive, log_weight = membership(problem.sets, chunk.first, chunk.last, S)
        scaled = problem.alpha * S
        positive_exponent = problem.positive_bias - scaled + log_weight
        negative_exponent = problem.negative_bias + scaled + log_weight
        if problem.anchor_bias is not None:
            negative_exponent += problem.anchor_bias[chunk.first : chunk.last, None]
        W_positive = log_one_plus_sum(positive_exponent.masked_fill_(~positive, -torch.inf), sums.lse_positive)
        left_out = positive if problem.drop_above is None else positive | (problem.drop_above < S)
        negative_exponent.masked_fill_(left_out, -torch.inf)
        W_negative = log_one_plus_sum(negative_exponent, sums.lse_negative)
        if sums.upstream is None:
            return
        W_positive *= sums.upstream[0].reshape(-1, 1)
        W_negative *= sums.upstream[1].reshape(-1, 1)
        if sums.dpositive_bias is not None and sums.dnegative_bias is not None:
            sums.dpositive_bias += W_positive.sum(0)
            sums.dnegative_bias += W_negative.sum(0)
        torch.sub(W_negative, W_positive, out=S).mul_(problem.alpha)


def membership(sets: LabelSets | ConfidenceSets, first: int, last: int, like: Tensor) -> tuple[Tensor, Tensor | float]:
    """Membership of X_p⁺ (c, B) bool, and the logarithm of the weights, for the classes ``first:last``."""
    if isinstance(sets, LabelSets):
        classes = torch.arange(first, last, device=like.device)[:, None]
        if sets.labels.dim() == 1:
            return sets.labels == classes, 0.0
        own = sets.labels == classes[..., None]  # (c, B, K)
        positive = own.any(2)
        if sets.weights is None:
            return positive, 0.0
        return positive, (own * sets.weights).sum(2).masked_fill(~positive, 1).log()
    values = sets.values(first, last, like.dtype)
    confidence = values.sigmoid() if sets.are_logits else values
    log_weight = torch.nn.functional.logsigmoid(sets.beta * (confidence - sets.threshold).abs())
    return confidence > sets.threshold, log_weight


class NativeAnchor(NativeRows, AnchorBackend):
    """On the CPU and on CUDA devices."""

    def anchor_lse(self, chunk: Chunk, sums: AnchorSums, problem: AnchorProblem) -> None:
        S, sets, on_gpu = chunk.S, problem.sets, module.on_gpu(chunk.S)
        given: dict[str, Any]
        if isinstance(sets, LabelSets):
            name, given = "labels", {"first_label": chunk.first}
            if on_gpu:
                given["labels"] = sets.labels
            else:
                given["sorted_labels"], given["order"] = sets.by_class()
        else:
            name, values = "confidences", sets.values(chunk.first, chunk.last, S.dtype)
            if on_gpu:
                # Both readings of a row want neighbours in the batch side by side; a matrix (B, C) has classes there.
                values = values.contiguous()
            anchor_stride, candidate_stride = values.stride()
            given = {"values": values, "anchor_stride": anchor_stride, "candidate_stride": candidate_stride}
            given |= {"logits": sets.are_logits, "beta": sets.beta, "threshold": sets.threshold}
        # On a GPU the kernels decide it row by row, from the row's sum.
        row_max = not on_gpu and problem.needs_row_max
        scale = None if on_gpu else chunk.scale
        tensors = problem.native_chunk(chunk.first, chunk.last, sums, row_max, S, scale)
        suffix, arguments = module.SUFFIX[S.dtype], module.addresses(given)
        if not on_gpu:
            kernel = getattr(module.library, f"anchor_lse_{name}_{suffix}")
            kernel(tensors, **arguments, threads=torch.get_num_threads())
            return
        B = S.shape[1]
        # Enough slices of the rows to fill a device, whatever the number of columns, in 256 Ki elements at most.
        slices = max(1, min(64, 131072 // max(B, 1)))
        partials = None if sums.dpositive_bias is None else S.new_empty((slices, 2, B))
        with module.current_stream(S.device) as stream:
            kernel = getattr(module.library, f"anchor_lse_{name}_cuda_{suffix}")
            kernel(tensors, **arguments, partials=module.address(partials), parts=slices, stream=stream)


class TritonAnchor(TritonRows, AnchorBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def inverse_norms(self, P: Tensor, inverse_norm: Tensor) -> bool:
        """Left to the epilogue, which reads P anyway."""
        return True

    def anchor_lse(self, chunk: Chunk, sums: AnchorSums, problem: AnchorProblem) -> None:
        from robustdml_ops.ops.anchor.kernels import anchor_lse as kernel

        S, sets = chunk.S, problem.sets
        c, B = S.shape
        values, anchor_stride, candidate_stride = None, 0, 0
        given: dict[str, Any] = {"labels": None, "beta": 0.0, "threshold": 0.0, "ARE_LOGITS": False}
        if isinstance(sets, LabelSets):
            given["labels"] = sets.labels
        else:
            values = sets.values(chunk.first, chunk.last, S.dtype)
            anchor_stride, candidate_stride = values.stride()
            given |= {"beta": float(sets.beta), "threshold": float(sets.threshold), "ARE_LOGITS": sets.are_logits}
        by_anchor = anchor_stride == 1
        parameters = epilogue_launch(B, S.dtype, values is None, by_anchor, device.tile_of("anchor_lse", S))
        grid = device.grid_of(c, parameters["BLOCK_C"])
        # Sums over anchors cross programs. Each leaves its part and torch adds the parts, in the same order every time.
        bias_partials = None if sums.dpositive_bias is None else S.new_empty((*grid, 2, B))
        with device.current(S):
            kernel[grid](
                S=S,
                dS=S if chunk.dS is None else chunk.dS,
                values=values,
                bias_partials=bias_partials,
                c=c,
                B=B,
                first=chunk.first,
                **device.as_they_are_arguments(None if chunk.scale is None else chunk.V, chunk.G, parameters),
                anchor_stride=anchor_stride,
                candidate_stride=candidate_stride,
                **given,
                **sums.arguments(),
                **problem.arguments(chunk.first, chunk.last, distinct=True),
                **parameters,
            )
        if bias_partials is not None and sums.dpositive_bias is not None and sums.dnegative_bias is not None:
            dpositive_bias, dnegative_bias = bias_partials.sum(0)
            sums.dpositive_bias += dpositive_bias
            sums.dnegative_bias += dnegative_bias


def epilogue_launch(
    B: int, compute: torch.dtype, labels: bool, anchors_contiguous: bool, tile: Mapping[str, int]
) -> device.Launch:
    """Tile of the epilogue: 16 elements of S a thread; 4 in float64, 8 with confidences or unaligned rows."""
    BLOCK_B = device.block_of(B, tile["candidates"] // (4 if anchors_contiguous else 1))
    elements = tile["elements"] // (4 if compute == torch.float64 else 1 if labels and B % 16 == 0 else 2)
    return device.launch(BLOCK_C=elements // BLOCK_B, BLOCK_B=BLOCK_B, num_warps=tile["num_warps"], num_stages=1)
