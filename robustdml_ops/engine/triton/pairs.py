"""The sums of a chunk of pairs in Triton."""

from typing import Any

from robustdml_ops.engine.pairs import PairChunk, PairHingeProblem, PairLSEProblem, PairSets
from robustdml_ops.engine.triton.device import current, grid_of, row_stride


def pair_lse(chunk: PairChunk, problem: PairLSEProblem) -> None:
    """Two log-sum-exps per row of ``chunk.S``, and S ← dL/dS."""
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.pair_lse import pair_lse as kernel

    c, m = chunk.S.shape
    parameters = launch.pairs(m, chunk.S.dtype)
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


def pair_hinge(chunk: PairChunk, problem: PairHingeProblem) -> None:
    """Two sums of hinges per row of ``chunk.S``, their counts, and S ← dL/dS."""
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.pair_hinge import pair_hinge as kernel

    assert chunk.counts is not None
    c, m = chunk.S.shape
    parameters = launch.pairs(m, chunk.S.dtype)
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
            **_chunk_arguments(chunk, problem.sets),
            **parameters,
        )


def _chunk_arguments(chunk: PairChunk, sets: PairSets) -> dict[str, Any]:
    """Arguments that both kernels take."""
    c, m = chunk.S.shape
    return {
        "S": chunk.S,
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
