"""The sums of pairs in the native module: of a chunk, and whole sweeps by lanes.

A sweep by lanes is one call: each thread of the CPU takes chunks of rows on its own.
"""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.lanes import matrix_product, set_threads, sweep_fields
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import Chunk, Similarities, upstream_arguments
from robustdml_ops.ops.pairs.problem import (
    DistanceLimits,
    GivenRows,
    PairBackend,
    PairBuffers,
    PairHingeProblem,
    PairLSEProblem,
    PairProblem,
)

# Rows of S with more candidates fit no core's cache: then all threads share a chunk.
MOST_CANDIDATES = 16384
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
        positive=sums.positive.data_ptr(),
        negative=sums.negative.data_ptr(),
        **module.addresses(upstream_arguments(sums.upstream)),
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


def sweep_by_lanes(
    similarities: Similarities, problem: PairProblem, buffers: PairBuffers, candidate_scale: Tensor | None = None
) -> None:
    """Anchors are the rows of ``similarities`` and candidates the batch; of hinges it is the other way round.

    1 / |candidate| of hinges go into ``candidate_scale`` (m,).
    """
    suffix = module.SUFFIX[similarities.compute]
    name, settings = settings_of(problem, similarities.X, buffers)
    lanes = getattr(module.library, f"Sweep_{suffix}")(**sweep_fields(similarities))
    scale = () if candidate_scale is None else (candidate_scale.data_ptr(),)
    if getattr(module.library, f"{name}_sweep_{suffix}")(_whole(problem, buffers), settings, lanes, *scale):
        similarities.check_proxy_gradients()


def symmetric_lanes_serve(anchors: Tensor, dtype: torch.dtype, operand: torch.dtype) -> bool:
    """Whether :func:`symmetric_by_lanes` multiplies such a batch."""
    return anchors.device.type == "cpu" and operand == dtype and matrix_product(dtype) != 0


def symmetric_by_lanes(U: Tensor, S: Tensor, dU: Tensor | None, problem: PairProblem, buffers: PairBuffers) -> None:
    """A batch with itself: unit rows U (n, D), buffer S (n, n) for the cosines; out: dU = dL/dU."""
    (n, D), suffix = U.shape, module.SUFFIX[S.dtype]
    name, settings = settings_of(problem, U, buffers)
    batch = getattr(module.library, f"Batch_{suffix}")(
        gemm=matrix_product(S.dtype),
        set_threads=set_threads(),
        U=U.data_ptr(),
        n=n,
        D=D,
        S=S.data_ptr(),
        dU=module.address(dU),
        average=problem.average,
        threads=torch.get_num_threads(),
    )
    getattr(module.library, f"{name}_symmetric_{suffix}")(_whole(problem, buffers, S.data_ptr()), settings, batch)


def _whole(problem: PairProblem, buffers: PairBuffers, S: int = 0) -> Any:
    """All anchors."""
    return native_chunk(buffers, problem.sets.narrow, 0 if problem.sets.itself else -1, S)
