"""The sums of a chunk of pairs in Triton."""

from collections.abc import Mapping
from typing import Any

import torch

from robustdml_ops.pairs.problem import (
    DistanceLimits,
    PairBackend,
    PairChunk,
    PairHingeProblem,
    PairLSEProblem,
    PairSets,
)
from robustdml_ops.rows.triton import TritonRows
from robustdml_ops.sweep import row_stride
from robustdml_ops.triton_device import Launch, block_of, current, grid_of, launch, tile_of


class TritonPairs(TritonRows, PairBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def pair_lse(self, chunk: PairChunk, problem: PairLSEProblem) -> None:
        """As :meth:`PairBackend.pair_lse`."""
        from robustdml_ops.pairs.kernels import pair_lse as kernel

        c, m = chunk.S.shape
        parameters = epilogue_launch(m, chunk.S.dtype, tile_of("pairs", chunk.S))
        with current(chunk.S):
            kernel[grid_of(c, parameters["BLOCK_R"])](
                candidate_weights=problem.candidate_weights,
                lse_positive=chunk.positive,
                lse_negative=chunk.negative,
                alpha=float(problem.alpha),
                beta=float(problem.beta),
                base=float(problem.base),
                epsilon=float(problem.epsilon or 0.0),
                MINING=problem.epsilon is not None,
                ROW_MAX=problem.needs_row_max(chunk.S.dtype),
                **_chunk_arguments(chunk, problem.sets),
                **parameters,
            )

    def pair_hinge(self, chunk: PairChunk, problem: PairHingeProblem) -> None:
        """As :meth:`PairBackend.pair_hinge`."""
        from robustdml_ops.pairs.kernels import pair_hinge as kernel

        assert chunk.counts is not None
        c, m = chunk.S.shape
        parameters = epilogue_launch(m, chunk.S.dtype, tile_of("pairs", chunk.S))
        with current(chunk.S):
            kernel[grid_of(c, parameters["BLOCK_R"])](
                sums_positive=chunk.positive,
                sums_negative=chunk.negative,
                counts_positive=chunk.counts[0],
                counts_negative=chunk.counts[1],
                positive_margin=float(problem.positive_margin),
                negative_margin=float(problem.negative_margin),
                positive_offset=float(problem.positive_offset),
                negative_offset=float(problem.negative_offset),
                EUCLIDEAN=problem.euclidean,
                **_rows(chunk),
                **_chunk_arguments(chunk, problem.sets),
                **parameters,
            )


def _rows(chunk: PairChunk) -> dict[str, Any]:
    """What distances need; with cosines S stands in for rows that nobody reads."""
    near, resolution = DistanceLimits.of(chunk.V)
    anchors, candidates = (chunk.S, chunk.S) if chunk.rows is None else chunk.rows
    return {
        "anchors": anchors,
        "candidates": candidates,
        "D": chunk.V.shape[1],
        "near": near,
        "resolution": resolution,
    }


def _chunk_arguments(chunk: PairChunk, sets: PairSets) -> dict[str, Any]:
    """Arguments that both kernels take."""
    c, m = chunk.S.shape
    return {
        "S": chunk.S,
        "dS": chunk.S if chunk.dS is None else chunk.dS,
        "labels": sets.labels[chunk.first : chunk.last],
        "candidate_labels": sets.candidate_labels,
        "upstream_positive": chunk.upstream_positive,
        "upstream_negative": chunk.upstream_negative,
        "upstream_positive_stride": row_stride(chunk.upstream_positive),
        "upstream_negative_stride": row_stride(chunk.upstream_negative),
        "c": c,
        "m": m,
        "first": chunk.first,
        "ITSELF": sets.itself,
    }


def epilogue_launch(m: int, compute: torch.dtype, tile: Mapping[str, int]) -> Launch:
    """Tile of the epilogues on pairs: by default 8 elements of S a thread beside four accumulators, half in float64.

    Short rows share a program. A long one has a program of its own: chunks of few rows are then spread over the GPU.
    """
    elements = tile["elements"] // (2 if compute == torch.float64 else 1)
    BLOCK_M = block_of(m, elements)
    return launch(BLOCK_R=elements // BLOCK_M, BLOCK_M=BLOCK_M, num_warps=tile["num_warps"], num_stages=1)
