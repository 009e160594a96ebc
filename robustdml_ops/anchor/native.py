"""The anchor log-sum-exp of a chunk in the native module."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops import native_module as module
from robustdml_ops.anchor.problem import AnchorBackend, AnchorChunk, AnchorProblem, ConfidenceSets
from robustdml_ops.label_sets import LabelSets
from robustdml_ops.rows.native import NativeRows
from robustdml_ops.sweep import row_stride


class NativeAnchor(NativeRows, AnchorBackend):
    """On the CPU and on CUDA devices."""

    def anchor_lse(self, chunk: AnchorChunk, problem: AnchorProblem) -> None:
        """As :meth:`AnchorBackend.anchor_lse`."""
        if module.on_gpu(chunk.S):
            with module.current_stream(chunk.S.device) as stream:
                _anchor_lse_cuda(chunk, problem, stream)
            return
        suffix = module.SUFFIX[chunk.S.dtype]
        arguments = _arguments(
            chunk,
            problem,
            row_max=problem.needs_row_max,
            inverse_norm=module.address(chunk.scale),
        )
        sets = problem.sets
        if isinstance(sets, LabelSets):
            sorted_labels, order = sets.by_class()
            getattr(module.library, f"anchor_lse_labels_{suffix}")(
                arguments,
                sorted_labels=sorted_labels.data_ptr(),
                order=order.data_ptr(),
                first_label=chunk.first,
                threads=torch.get_num_threads(),
            )
            return
        values = sets.values(chunk.first, chunk.last, chunk.S.dtype)
        getattr(module.library, f"anchor_lse_confidences_{suffix}")(
            arguments,
            **_confidences(sets, values),
            threads=torch.get_num_threads(),
        )


def _arguments(chunk: AnchorChunk, problem: AnchorProblem, row_max: bool, **anchors: int) -> Any:
    """``chunk`` as the native module reads it."""
    return getattr(module.library, f"AnchorChunk_{module.SUFFIX[chunk.S.dtype]}")(
        S=chunk.S.data_ptr(),
        rows=chunk.S.shape[0],
        B=chunk.S.shape[1],
        row_max=row_max,
        upstream_positive=module.address(chunk.upstream_positive),
        upstream_negative=module.address(chunk.upstream_negative),
        upstream_positive_stride=row_stride(chunk.upstream_positive),
        upstream_negative_stride=row_stride(chunk.upstream_negative),
        lse_positive=chunk.lse_positive.data_ptr(),
        lse_negative=chunk.lse_negative.data_ptr(),
        dpositive_bias=module.address(chunk.dpositive_bias),
        dnegative_bias=module.address(chunk.dnegative_bias),
        **module.addresses(problem.arguments(chunk.first, chunk.last)),
        **anchors,
    )


def _confidences(sets: ConfidenceSets, values: Tensor) -> dict[str, Any]:
    """``values`` of ``sets`` as the native module reads them."""
    return {
        "values": values.data_ptr(),
        "anchor_stride": values.stride(0),
        "candidate_stride": values.stride(1),
        "logits": sets.are_logits,
        "beta": sets.beta,
        "threshold": sets.threshold,
    }


def _anchor_lse_cuda(chunk: AnchorChunk, problem: AnchorProblem, stream: int) -> None:
    suffix = module.SUFFIX[chunk.S.dtype]
    # Whether a row needs its maximum is a question to the device: the kernels always take it, and nothing waits.
    arguments = _arguments(chunk, problem, row_max=True)
    B = chunk.S.shape[1]
    # Enough parts of the rows to fill a device, whatever the number of columns, in 256 Ki elements at most.
    parts = max(1, min(64, 131072 // max(B, 1)))
    partials = None if chunk.dpositive_bias is None else chunk.S.new_empty((parts, 2, B))
    sets = problem.sets
    if isinstance(sets, LabelSets):
        getattr(module.library, f"anchor_lse_labels_cuda_{suffix}")(
            arguments,
            labels=sets.labels.data_ptr(),
            first_label=chunk.first,
            partials=module.address(partials),
            parts=parts,
            stream=stream,
        )
        return
    # Both readings of a row want neighbours in the batch side by side; a matrix (B, C) has classes there.
    values = sets.values(chunk.first, chunk.last, chunk.S.dtype).contiguous()
    getattr(module.library, f"anchor_lse_confidences_cuda_{suffix}")(
        arguments,
        **_confidences(sets, values),
        partials=module.address(partials),
        parts=parts,
        stream=stream,
    )
