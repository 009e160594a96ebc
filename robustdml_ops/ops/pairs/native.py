"""The sums of a chunk of pairs in the native module."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import Chunk, row_stride
from robustdml_ops.ops.pairs.problem import (
    DistanceLimits,
    GivenRows,
    PairBackend,
    PairBuffers,
    PairHingeProblem,
    PairLSEProblem,
    PairProblem,
)

# As cuda::Element of csrc/rows/cuda.h.
_ELEMENT = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


class NativePairs(NativeRows, PairBackend):
    """On the CPU and on CUDA devices."""

    def pair_lse(self, chunk: Chunk, problem: PairLSEProblem, sums: PairBuffers) -> None:
        _run(chunk, problem, sums)

    def pair_hinge(self, chunk: Chunk, problem: PairHingeProblem, sums: PairBuffers) -> None:
        _run(chunk, problem, sums)


def settings_of(problem: PairProblem, operands: Tensor, sums: PairBuffers, first: int = 0) -> tuple[str, Any]:
    """Name of its functions, and the problem as a ``PairLSE`` or ``PairHinge``; counts and ``first`` are of a chunk."""
    dtype = sums.positive.dtype
    if isinstance(problem, PairLSEProblem):
        return "pair_lse", getattr(module.library, f"PairLSE_{module.SUFFIX[dtype]}")(
            alpha=problem.alpha,
            beta=problem.beta,
            base=problem.base,
            epsilon=problem.epsilon or 0.0,
            mining=problem.epsilon is not None,
            row_max=problem.needs_row_max(dtype),
            candidate_weights=module.address(problem.candidate_weights),
        )
    assert sums.counts is not None
    return "pair_hinge", getattr(module.library, f"PairHinge_{module.SUFFIX[dtype]}")(
        positive_margin=problem.positive_margin,
        negative_margin=problem.negative_margin,
        positive_offset=problem.positive_offset,
        negative_offset=problem.negative_offset,
        euclidean=problem.euclidean,
        positive_count=sums.counts[0].data_ptr(),
        negative_count=sums.counts[1].data_ptr(),
        **_rows(operands, sums.rows, first),
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
    sums: PairBuffers, labels: tuple[Tensor, Tensor], itself: int, S: int = 0, kind: str = "", **given: int
) -> Any:
    """Anchors, from that of the first label on, as a ``PairChunk`` of the native module."""
    return getattr(module.library, f"PairChunk{kind}_{module.SUFFIX[sums.positive.dtype]}")(
        S=S,
        rows=len(sums.positive),
        m=len(labels[1]),
        labels=labels[0].data_ptr(),
        candidate_labels=labels[1].data_ptr(),
        itself=itself,
        upstream_positive=module.address(sums.upstream_positive),
        upstream_negative=module.address(sums.upstream_negative),
        upstream_positive_stride=row_stride(sums.upstream_positive),
        upstream_negative_stride=row_stride(sums.upstream_negative),
        positive=sums.positive.data_ptr(),
        negative=sums.negative.data_ptr(),
        **given,
    )


def _run(chunk: Chunk, problem: PairProblem, sums: PairBuffers) -> None:
    S, first, sets = chunk.S, chunk.first, problem.sets
    name, settings = settings_of(problem, chunk.V, sums, first)
    itself = first if sets.itself else -1
    if module.on_gpu(S):
        labels = (sets.labels[first:], sets.candidate_labels)
        given = native_chunk(sums, labels, itself, S.data_ptr(), "_cuda")
    else:
        labels = (sets.narrow[0][first:], sets.narrow[1])
        given = native_chunk(sums, labels, itself, S.data_ptr(), inverse_norm=module.address(chunk.scale))
    module.call(name, S, given, settings)
