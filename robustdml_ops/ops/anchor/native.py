"""The anchor log-sum-exp of a chunk in the native module."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.lanes import arguments
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import Similarities, row_stride
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorChunk, AnchorProblem, ConfidenceSets
from robustdml_ops.ops.anchor.result import SweepResult


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

    def sweep(
        self,
        similarities: Similarities,
        problem: AnchorProblem,
        upstream: tuple[Tensor, Tensor] | None,
        result: SweepResult,
    ) -> bool:
        """As :meth:`AnchorBackend.sweep`: by lanes, on the CPU."""
        compute, sets = similarities.compute, problem.sets
        lanes = arguments(similarities, sets.per_class)
        values = None if lanes is None or isinstance(sets, LabelSets) else _whole_confidences(sets, compute)
        if lanes is None or (values is None and not isinstance(sets, LabelSets)):
            return False
        suffix = module.SUFFIX[compute]
        whole = _whole(similarities, problem, upstream, result)
        lanes["total"] = module.address(result.total)
        if isinstance(sets, LabelSets):
            sorted_labels, order = sets.by_class()
            short = getattr(module.library, f"anchor_sweep_labels_{suffix}")(
                whole, sorted_labels=sorted_labels.data_ptr(), order=order.data_ptr(), first_label=0, **lanes
            )
        else:
            assert values is not None
            short = getattr(module.library, f"anchor_sweep_confidences_{suffix}")(
                whole, **module.addresses(values), **lanes
            )
        if short:
            similarities.check_proxy_gradients()
        return True


def _whole(
    similarities: Similarities, problem: AnchorProblem, upstream: tuple[Tensor, Tensor] | None, result: SweepResult
) -> Any:
    """All classes, as the native module reads a chunk."""
    positive, negative = upstream or (None, None)
    return getattr(module.library, f"AnchorChunk_{module.SUFFIX[similarities.compute]}")(
        S=0,
        rows=similarities.count,
        B=len(similarities.X),
        row_max=problem.needs_row_max,
        upstream_positive=module.address(positive),
        upstream_negative=module.address(negative),
        upstream_positive_stride=row_stride(positive),
        upstream_negative_stride=row_stride(negative),
        lse_positive=module.address(result.lse_positive),
        lse_negative=module.address(result.lse_negative),
        dpositive_bias=module.address(result.dpositive_bias),
        dnegative_bias=module.address(result.dnegative_bias),
        **module.addresses(problem.arguments(0, similarities.count)),
    )


def _whole_confidences(sets: ConfidenceSets, compute: torch.dtype) -> dict[str, Any] | None:
    """The confidences of all classes, or the factors of their logits; None where they are of another type."""
    # A matrix, or a weight, is as large as all classes: no copy of it.
    largest = sets.weight if sets.confidences is None else sets.confidences
    assert largest is not None
    if largest.dtype != compute:
        return None
    given = {"logits": sets.are_logits, "beta": sets.beta, "threshold": sets.threshold}
    if sets.confidences is not None:
        anchors, candidates = sets.confidences.stride(1), sets.confidences.stride(0)
        strides = {"anchor_stride": anchors, "candidate_stride": candidates}
        return {"values": sets.confidences, "hidden": None, "weight": None, "bias": None, "K": 0, **strides, **given}
    assert sets.hidden is not None and sets.weight is not None and sets.bias is not None
    if not sets.weight.is_contiguous():
        return None
    factors = {
        "hidden": sets.hidden.to(compute).contiguous(),
        "weight": sets.weight,
        "bias": sets.bias.to(compute).contiguous(),
    }
    B, K = sets.hidden.shape
    return {"values": None, "anchor_stride": B, "candidate_stride": 1, "K": K, **factors, **given}


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
    # Whether a row needs its maximum is a question to the device: the kernels ask it of the row's sum.
    arguments = _arguments(chunk, problem, row_max=False)
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
