"""The anchor sweep in one call of the native module: each thread of the CPU takes chunks of proxies on its own."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.lanes import lanes_serve, sweep_fields
from robustdml_ops.engine.similarity_chunks import Similarities
from robustdml_ops.ops.anchor.native import native_chunk
from robustdml_ops.ops.anchor.problem import AnchorProblem, ConfidenceSets, SweepResult


def anchor_lanes_serve(
    proxies: Tensor, sets: LabelSets | ConfidenceSets, operand: torch.dtype, compute: torch.dtype
) -> bool:
    """Whether lanes read the proxies, and the confidences of all classes without a copy."""
    return lanes_serve(proxies, operand, compute) and (isinstance(sets, LabelSets) or _read_in_place(sets, compute))


def sweep_by_lanes(
    similarities: Similarities, problem: AnchorProblem, upstream: tuple[Tensor, Tensor] | None, result: SweepResult
) -> None:
    """Fill the tensors that ``result`` and ``similarities`` have."""
    compute, sets = similarities.compute, problem.sets
    suffix, lanes = module.SUFFIX[compute], sweep_fields(similarities, sets.per_class)
    lanes["total"] = module.address(result.total)
    whole = native_chunk(
        problem,
        0,
        similarities.count,
        upstream or (None, None),
        (result.lse_positive, result.lse_negative),
        (result.dpositive_bias, result.dnegative_bias),
        row_max=problem.needs_row_max,
    )
    if isinstance(sets, LabelSets):
        sorted_labels, order = sets.by_class()
        short = getattr(module.library, f"anchor_sweep_labels_{suffix}")(
            whole, sorted_labels=sorted_labels.data_ptr(), order=order.data_ptr(), first_label=0, **lanes
        )
    else:
        values = _confidences(sets, compute)
        short = getattr(module.library, f"anchor_sweep_confidences_{suffix}")(
            whole, **module.addresses(values), **lanes
        )
    if short:
        similarities.check_proxy_gradients()


def _read_in_place(sets: ConfidenceSets, compute: torch.dtype) -> bool:
    """Whether the matrix of confidences, or the weight of their logits, can be read as it is stored."""
    if sets.confidences is not None:
        return sets.confidences.dtype == compute
    assert sets.weight is not None
    return sets.weight.dtype == compute and sets.weight.is_contiguous()


def _confidences(sets: ConfidenceSets, compute: torch.dtype) -> dict[str, Any]:
    """The confidences of all classes, or the factors of their logits, as the native module takes them."""
    given = {"logits": sets.are_logits, "beta": sets.beta, "threshold": sets.threshold}
    if sets.confidences is not None:
        candidates, anchors = sets.confidences.stride()
        strides = {"anchor_stride": anchors, "candidate_stride": candidates}
        return {"values": sets.confidences, "hidden": None, "weight": None, "bias": None, "K": 0, **strides, **given}
    assert sets.hidden is not None and sets.bias is not None
    factors = {
        "hidden": sets.hidden.to(compute).contiguous(),
        "weight": sets.weight,
        "bias": sets.bias.to(compute).contiguous(),
    }
    B, K = sets.hidden.shape
    return {"values": None, "anchor_stride": B, "candidate_stride": 1, "K": K, **factors, **given}
