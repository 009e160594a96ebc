"""The sums of a chunk of pairs in Triton."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import Launch, block_of, current, grid_of, launch, tile_of
from robustdml_ops.engine.rows.backends import TritonRows
from robustdml_ops.engine.similarity_chunks import Chunk, upstream_arguments
from robustdml_ops.ops.pairs.problem import (
    DistanceLimits,
    PairBackend,
    PairContrastProblem,
    PairHingeProblem,
    PairLSEProblem,
    PairSets,
    PairSums,
)

_PROGRAMS = 2 * 132


class TritonPairs(TritonRows, PairBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def pair_lse(self, chunk: Chunk, problem: PairLSEProblem, sums: PairSums) -> None:
        from robustdml_ops.ops.pairs.kernels import pair_lse as kernel

        c, m = chunk.S.shape
        parameters = epilogue_launch(m, chunk.S.dtype, tile_of("pairs", chunk.S))
        (programs,) = grid_of(c, parameters["BLOCK_R"])
        parts, per_part = parts_of(programs, m, int(parameters["BLOCK_M"]))
        row_max = problem.needs_row_max(chunk.S.dtype)
        stages = [("all", 1)]
        if parts > 1:
            stages = [("sums", parts), ("gradients", 1 if sums.upstream is None else parts)]
            if problem.epsilon is not None or row_max:
                stages = [("extrema", parts), *stages]
        partials = None if parts == 1 else chunk.S.new_empty((8, parts, c))
        with current(chunk.S):
            for stage, width in stages:
                kernel[programs, width](
                    candidate_weights=problem.candidate_weights,
                    lse_positive=sums.positive,
                    lse_negative=sums.negative,
                    partials=partials,
                    parts=parts,
                    per_part=per_part,
                    alpha=float(problem.alpha),
                    beta=float(problem.beta),
                    base=float(problem.base),
                    epsilon=float(problem.epsilon or 0.0),
                    MINING=problem.epsilon is not None,
                    ROW_MAX=row_max,
                    STAGE=stage,
                    BLOCK_P=1 << (parts - 1).bit_length(),
                    **_chunk_arguments(chunk, problem.sets, sums),
                    **parameters,
                )

    def pair_hinge(self, chunk: Chunk, problem: PairHingeProblem, sums: PairSums) -> None:
        from robustdml_ops.ops.pairs.hinge_kernel import pair_hinge as kernel

        assert sums.counts is not None
        c, m = chunk.S.shape
        parameters = epilogue_launch(m, chunk.S.dtype, tile_of("pairs", chunk.S), problem.euclidean)
        (programs,) = grid_of(c, parameters["BLOCK_R"])
        parts, per_part = parts_of(programs, m, int(parameters["BLOCK_M"]))
        positive, negative, counts = sums.positive, sums.negative, sums.counts
        near, resolution = DistanceLimits.of(chunk.V)
        anchors, candidates = sums.rows or (chunk.S, chunk.S)  # S in place of rows that are not read
        if parts > 1:
            positive, negative = chunk.S.new_empty((2, parts, c))
            counts = counts.new_empty((2, parts, c))
        with current(chunk.S):
            kernel[programs, parts](
                sums_positive=positive,
                sums_negative=negative,
                counts_positive=counts[0],
                counts_negative=counts[1],
                per_part=per_part,
                EUCLIDEAN=problem.euclidean,
                anchors=anchors,
                candidates=candidates,
                D=chunk.V.shape[1],
                near=near,
                resolution=resolution,
                **problem.margins,
                **_chunk_arguments(chunk, problem.sets, sums),
                **parameters,
            )
        if parts > 1:
            torch.sum(positive, 0, out=sums.positive)
            torch.sum(negative, 0, out=sums.negative)
            torch.sum(counts, 1, out=sums.counts)

    def keeps_cosines(self, S: Tensor, problem: PairHingeProblem) -> bool:
        return not problem.euclidean

    def pair_contrast(self, chunk: Chunk, problem: PairContrastProblem, sums: PairSums) -> None:
        from robustdml_ops.ops.pairs.contrast_kernel import pair_contrast as kernel

        c, m = chunk.S.shape
        parameters = epilogue_launch(m, chunk.S.dtype, tile_of("pairs", chunk.S))
        dscale, dbias = (None, None) if sums.dcoefficients is None else sums.dcoefficients
        column_lse, column_upstream = problem.columns or (None, None)
        with current(chunk.S):
            kernel[grid_of(c, parameters["BLOCK_R"])](
                coefficients=problem.coefficients,
                column_lse=column_lse,
                column_upstream=column_upstream,
                losses=sums.positive,
                lses=sums.negative,
                dscale=dscale,
                dbias=dbias,
                FORM=problem.form,
                **_chunk_arguments(chunk, problem.sets, sums),
                **parameters,
            )


def parts_of(programs: int, m: int, block: int) -> tuple[int, int]:
    """How many slices m candidates are divided into, and candidates of each: whole blocks, at least four."""
    # Few anchors would leave a GPU idle; whatever the GPU, so that the bits are the same.
    blocks = -(-m // block)
    parts = max(1, min(_PROGRAMS // programs, blocks // 4))
    per_part = -(-blocks // parts)
    return -(-blocks // per_part), per_part * block


def _chunk_arguments(chunk: Chunk, sets: PairSets, sums: PairSums) -> dict[str, Any]:
    """Arguments that all three kernels take."""
    c, m = chunk.S.shape
    return {
        "S": chunk.S,
        "dS": chunk.S if chunk.dS is None else chunk.dS,
        "labels": sets.labels[chunk.first : chunk.last],
        "candidate_labels": sets.candidate_labels,
        "c": c,
        "m": m,
        "first": chunk.first,
        "ITSELF": sets.itself,
        **upstream_arguments(sums.upstream),
    }


def epilogue_launch(m: int, compute: torch.dtype, tile: Mapping[str, int], distances: bool = False) -> Launch:
    """Tile of the epilogues on pairs: 8 elements of S a thread; fewer in float64, where distances spill registers."""
    halved = 1 if compute != torch.float64 else 4 if distances else 2
    elements, num_warps = tile["elements"] // halved, tile["num_warps"] // (2 if halved == 4 else 1)
    BLOCK_M = block_of(m, min(elements, tile["candidates"]))
    return launch(BLOCK_R=elements // BLOCK_M, BLOCK_M=BLOCK_M, num_warps=num_warps, num_stages=1)
