"""The anchor log-sum-exp of a chunk in the native module."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorProblem, AnchorSums


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
        tensors = native_chunk(problem, chunk.first, chunk.last, sums, row_max, S, scale)
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


def native_chunk(
    problem: AnchorProblem,
    first: int,
    last: int,
    sums: AnchorSums,
    row_max: bool,
    S: Tensor | None = None,
    inverse_norm: Tensor | None = None,
) -> Any:
    """The classes ``first:last`` as an ``AnchorChunk`` of the native module."""
    biases = {"dpositive_bias": sums.dpositive_bias, "dnegative_bias": sums.dnegative_bias}
    tensors = {"S": S, "inverse_norm": inverse_norm, **biases, **sums.arguments(), **problem.arguments(first, last)}
    return getattr(module.library, f"AnchorChunk_{module.SUFFIX[problem.positive_bias.dtype]}")(
        rows=last - first, B=len(problem.positive_bias), row_max=row_max, **module.addresses(tensors)
    )
