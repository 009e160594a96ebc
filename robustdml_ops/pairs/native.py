"""The sums of a chunk of pairs in the native module."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops import native_module as module
from robustdml_ops.pairs.problem import (
    DistanceLimits,
    PairBackend,
    PairChunk,
    PairHingeProblem,
    PairLSEProblem,
    PairSets,
)
from robustdml_ops.rows.native import NativeRows
from robustdml_ops.sweep import row_stride

# As cuda::Element of csrc/rows/cuda.h.
_ELEMENT = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


class NativePairs(NativeRows, PairBackend):
    """On the CPU and on CUDA devices."""

    def pair_lse(self, chunk: PairChunk, problem: PairLSEProblem) -> None:
        """As :meth:`PairBackend.pair_lse`."""
        suffix = module.SUFFIX[chunk.S.dtype]
        settings = getattr(module.library, f"PairLSE_{suffix}")(
            alpha=problem.alpha,
            beta=problem.beta,
            base=problem.base,
            epsilon=problem.epsilon or 0.0,
            mining=problem.epsilon is not None,
            row_max=problem.needs_row_max(chunk.S.dtype),
            candidate_weights=module.address(problem.candidate_weights),
        )
        _run("pair_lse", chunk, problem.sets, settings)

    def pair_hinge(self, chunk: PairChunk, problem: PairHingeProblem) -> None:
        """As :meth:`PairBackend.pair_hinge`."""
        assert chunk.counts is not None
        settings = getattr(module.library, f"PairHinge_{module.SUFFIX[chunk.S.dtype]}")(
            positive_margin=problem.positive_margin,
            negative_margin=problem.negative_margin,
            positive_offset=problem.positive_offset,
            negative_offset=problem.negative_offset,
            euclidean=problem.euclidean,
            positive_count=chunk.counts[0].data_ptr(),
            negative_count=chunk.counts[1].data_ptr(),
            **_rows(chunk),
        )
        _run("pair_hinge", chunk, problem.sets, settings)


def _rows(chunk: PairChunk) -> dict[str, Any]:
    """What distances need."""
    if chunk.rows is None:
        return {}
    anchors, candidates = chunk.rows
    D, limits = anchors.shape[1], DistanceLimits.of(chunk.V)
    return {
        "near": limits.near,
        "resolution": limits.resolution,
        "anchors": anchors.data_ptr() + chunk.first * D * anchors.itemsize,
        "candidates": candidates.data_ptr(),
        "D": D,
        "anchors_element": _ELEMENT[anchors.dtype],
        "candidates_element": _ELEMENT[candidates.dtype],
    }


def _run(name: str, chunk: PairChunk, sets: PairSets, settings: Any) -> None:
    suffix = module.SUFFIX[chunk.S.dtype]
    if module.on_gpu(chunk.S):
        labels = sets.labels[chunk.first :]
        arguments = _arguments(chunk, f"PairChunk_cuda_{suffix}", labels, sets.candidate_labels, sets.itself)
        with module.current_stream(chunk.S.device) as stream:
            getattr(module.library, f"{name}_cuda_{suffix}")(arguments, settings, stream)
        return
    labels, candidate_labels = sets.narrow
    arguments = _arguments(
        chunk,
        f"PairChunk_{suffix}",
        labels[chunk.first :],
        candidate_labels,
        sets.itself,
        inverse_norm=module.address(chunk.scale),
    )
    getattr(module.library, f"{name}_{suffix}")(arguments, settings, torch.get_num_threads())


def _arguments(
    chunk: PairChunk, kind: str, labels: Tensor, candidate_labels: Tensor, itself: bool, **anchors: int
) -> Any:
    """``chunk`` as the native module reads it."""
    return getattr(module.library, kind)(
        S=chunk.S.data_ptr(),
        rows=chunk.S.shape[0],
        m=chunk.S.shape[1],
        labels=labels.data_ptr(),
        candidate_labels=candidate_labels.data_ptr(),
        itself=chunk.first if itself else -1,
        upstream_positive=module.address(chunk.upstream_positive),
        upstream_negative=module.address(chunk.upstream_negative),
        upstream_positive_stride=row_stride(chunk.upstream_positive),
        upstream_negative_stride=row_stride(chunk.upstream_negative),
        positive=chunk.positive.data_ptr(),
        negative=chunk.negative.data_ptr(),
        **anchors,
    )
