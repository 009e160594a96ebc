"""The sums of a chunk of pairs in the native module."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import row_stride
from robustdml_ops.ops.pairs.problem import (
    DistanceLimits,
    GivenRows,
    PairBackend,
    PairBuffers,
    PairChunk,
    PairHingeProblem,
    PairLSEProblem,
    PairSets,
)

# As cuda::Element of csrc/rows/cuda.h.
_ELEMENT = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


class NativePairs(NativeRows, PairBackend):
    """On the CPU and on CUDA devices."""

    def pair_lse(self, chunk: PairChunk, problem: PairLSEProblem) -> None:
        _run("pair_lse", chunk, problem.sets, lse_settings(problem, chunk.S.dtype))

    def pair_hinge(self, chunk: PairChunk, problem: PairHingeProblem) -> None:
        settings = hinge_settings(problem, chunk.V, chunk.counts, chunk.rows, chunk.first)
        _run("pair_hinge", chunk, problem.sets, settings)


def lse_settings(problem: PairLSEProblem, dtype: torch.dtype) -> Any:
    """Numbers of the problem as a ``PairLSE`` of the native module."""
    return getattr(module.library, f"PairLSE_{module.SUFFIX[dtype]}")(
        alpha=problem.alpha,
        beta=problem.beta,
        base=problem.base,
        epsilon=problem.epsilon or 0.0,
        mining=problem.epsilon is not None,
        row_max=problem.needs_row_max(dtype),
        candidate_weights=module.address(problem.candidate_weights),
    )


def hinge_settings(
    problem: PairHingeProblem, operands: Tensor, counts: Tensor | None, rows: GivenRows | None, first: int = 0
) -> Any:
    """The problem as a ``PairHinge`` of the native module; ``counts`` and ``first`` are of a chunk, ``rows`` of all."""
    assert counts is not None
    dtype = torch.float64 if operands.dtype == torch.float64 else torch.float32
    return getattr(module.library, f"PairHinge_{module.SUFFIX[dtype]}")(
        positive_margin=problem.positive_margin,
        negative_margin=problem.negative_margin,
        positive_offset=problem.positive_offset,
        negative_offset=problem.negative_offset,
        euclidean=problem.euclidean,
        positive_count=counts[0].data_ptr(),
        negative_count=counts[1].data_ptr(),
        **_rows(operands, rows, first),
    )


def _rows(operands: Tensor, rows: GivenRows | None, first: int) -> dict[str, Any]:
    """Arguments of Euclidean distances."""
    if rows is None:
        return {}
    anchors, candidates = rows
    D, limits = anchors.shape[1], DistanceLimits.of(operands)
    return {
        "near": limits.near,
        "resolution": limits.resolution,
        "anchors": anchors.data_ptr() + first * D * anchors.itemsize,
        "candidates": candidates.data_ptr(),
        "D": D,
        "anchors_element": _ELEMENT[anchors.dtype],
        "candidates_element": _ELEMENT[candidates.dtype],
    }


def native_chunk(
    kind: str,
    tensors: PairChunk | PairBuffers,
    labels: Tensor,
    candidate_labels: Tensor,
    itself: int,
    S: int = 0,
    **inverse_norm: int,
) -> Any:
    """Anchors, from that of ``labels[0]`` on, as a ``PairChunk`` of the native module."""
    return getattr(module.library, kind)(
        S=S,
        rows=len(tensors.positive),
        m=len(candidate_labels),
        labels=labels.data_ptr(),
        candidate_labels=candidate_labels.data_ptr(),
        itself=itself,
        upstream_positive=module.address(tensors.upstream_positive),
        upstream_negative=module.address(tensors.upstream_negative),
        upstream_positive_stride=row_stride(tensors.upstream_positive),
        upstream_negative_stride=row_stride(tensors.upstream_negative),
        positive=tensors.positive.data_ptr(),
        negative=tensors.negative.data_ptr(),
        **inverse_norm,
    )


def _run(name: str, chunk: PairChunk, sets: PairSets, settings: Any) -> None:
    S, first, suffix = chunk.S, chunk.first, module.SUFFIX[chunk.S.dtype]
    itself = first if sets.itself else -1
    if module.on_gpu(S):
        kind, labels = f"PairChunk_cuda_{suffix}", sets.labels[first:]
        given = native_chunk(kind, chunk, labels, sets.candidate_labels, itself, S.data_ptr())
        with module.current_stream(S.device) as stream:
            getattr(module.library, f"{name}_cuda_{suffix}")(given, settings, stream)
        return
    labels, candidate_labels = sets.narrow
    inverse_norm = module.address(chunk.scale)
    given = native_chunk(
        f"PairChunk_{suffix}", chunk, labels[first:], candidate_labels, itself, S.data_ptr(), inverse_norm=inverse_norm
    )
    getattr(module.library, f"{name}_{suffix}")(given, settings, torch.get_num_threads())
