"""The sums of pairs in the native module: of a chunk, and whole sweeps by lanes, one call each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.rows.backends import NativeRows
from robustdml_ops.engine.similarity_chunks import Chunk, Similarities, upstream_arguments
from robustdml_ops.ops.pairs.problem import (
    FORMS,
    Arithmetic,
    DistanceLimits,
    PairBackend,
    PairContrastProblem,
    PairHingeProblem,
    PairLSEProblem,
    PairProblem,
    PairSets,
    PairSums,
)

# Elements of the candidates up to which lanes are as fast as all threads on a chunk: each block of a thread has its own
# gradient of the candidates. Rows count at least so many columns, as a row of S has to fit a core's cache.
_MOST_ELEMENTS, _LEAST_COLUMNS = 1 << 19, 32
# As cuda::Element of csrc/rows/cuda.h.
_ELEMENT = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


class NativePairs(NativeRows, PairBackend):
    """On the CPU and on CUDA devices."""

    has_lanes = True

    def pair_sums(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        S, first, sets, sums = chunk.S, chunk.first, problem.sets, sums.of(chunk)
        settings = settings_of(problem, chunk.V, sums, first)
        if module.on_gpu(S):
            given = native_chunk(sums, sets, first, S, "_cuda")
        else:
            norms = {"inverse_norm": chunk.scale, "candidate_inverse_norm": chunk.X_scale}
            given = native_chunk(sums, sets, first, S, **module.addresses(norms))
        module.call(problem.kind, S, given, settings)

    def keeps_cosines(self, S: Tensor, problem: PairHingeProblem) -> bool:
        return module.on_gpu(S)


def settings_of(problem: PairProblem, operands: Tensor, sums: PairSums, first: int = 0) -> Any:
    """The problem as a native structure; counts, dcoefficients and ``first`` are of a chunk."""
    dtype = sums.positive.dtype
    if isinstance(problem, PairLSEProblem):
        return getattr(module.library, f"PairLSE_{module.SUFFIX[dtype]}")(
            alpha=problem.alpha,
            beta=problem.beta,
            base=problem.base,
            epsilon=problem.epsilon or 0.0,
            mining=problem.epsilon is not None,
            row_max=problem.needs_row_max(dtype),
            candidate_weights=module.address(problem.candidate_weights),
        )
    if isinstance(problem, PairContrastProblem):
        dscale, dbias = (None, None) if sums.dcoefficients is None else sums.dcoefficients
        column_lse, column_upstream = problem.columns or (None, None)
        return getattr(module.library, f"PairContrast_{module.SUFFIX[dtype]}")(
            form=FORMS.index(problem.form),
            coefficients=problem.coefficients.data_ptr(),
            dscale=module.address(dscale),
            dbias=module.address(dbias),
            column_lse=module.address(column_lse),
            column_upstream=module.address(column_upstream),
        )
    assert sums.counts is not None
    rows: dict[str, Any] = {}
    if sums.rows is not None:
        (anchors, candidates), D, limits = sums.rows, sums.rows.anchors.shape[1], DistanceLimits.of(operands)
        rows = {
            "near": limits.near,
            "resolution": limits.resolution,
            "anchors": anchors.data_ptr() + first * D * anchors.itemsize,
            "candidates": candidates.data_ptr(),
            "D": D,
            "anchors_element": _ELEMENT[anchors.dtype],
            "candidates_element": _ELEMENT[candidates.dtype],
        }
    return getattr(module.library, f"PairHinge_{module.SUFFIX[dtype]}")(
        **problem.margins,
        euclidean=problem.euclidean,
        positive_count=sums.counts[0].data_ptr(),
        negative_count=sums.counts[1].data_ptr(),
        **rows,
    )


def native_chunk(
    sums: PairSums, sets: PairSets, first: int = 0, S: Tensor | None = None, kind: str = "", **given: int
) -> Any:
    """Anchors from ``first`` on, as many as ``sums`` holds, as a ``PairChunk`` of the native module."""
    labels, candidate_labels = (sets.labels, sets.candidate_labels) if kind else sets.narrow
    return getattr(module.library, f"PairChunk{kind}_{module.SUFFIX[sums.positive.dtype]}")(
        S=module.address(S),
        rows=len(sums.positive),
        m=len(candidate_labels),
        labels=labels[first:].data_ptr(),
        candidate_labels=candidate_labels.data_ptr(),
        itself=first if sets.itself else -1,
        positive=sums.positive.data_ptr(),
        negative=sums.negative.data_ptr(),
        **module.addresses(upstream_arguments(sums.upstream)),
        **given,
    )


def rows_fit_lanes(candidates: Tensor) -> bool:
    """Whether candidates are so few that sums complete with a row go by lanes."""
    return len(candidates) * max(candidates.shape[1], _LEAST_COLUMNS) <= _MOST_ELEMENTS


def sweep_by_lanes(
    similarities: Similarities, problem: PairProblem, sums: PairSums, candidate_scale: Tensor | None = None
) -> None:
    """Anchors are rows of ``similarities``, candidates the batch; of hinges, with 1 / |candidate| out, the reverse."""
    suffix = module.SUFFIX[similarities.compute]
    settings = settings_of(problem, similarities.X, sums)
    lanes = getattr(module.library, f"Sweep_{suffix}")(**similarities.native_fields())
    scale = () if candidate_scale is None else (candidate_scale.data_ptr(),)
    if getattr(module.library, f"{problem.kind}_sweep_{suffix}")(
        native_chunk(sums, problem.sets), settings, lanes, *scale
    ):
        similarities.check_proxy_gradients()


# Bytes of S that stay between both passes of tiles, where that is a twentieth of it at least.
_S_BYTES = 40 << 20


def tile_bytes(n: int, m: int, dtype: torch.dtype) -> int:
    """Memory for tiles of S (n, m)."""
    return _S_BYTES if n * m * dtype.itemsize <= 20 * _S_BYTES else 0


class TiledSide(NamedTuple):
    """One matrix of a contrast by tiles."""

    X: Tensor  # (n, D) compute type, contiguous
    inverse_norm: Tensor  # (n,)
    dX: Tensor | None  # (n, D), where wanted


def contrast_by_tiles(
    matrices: Sequence[Tensor],
    problem: PairContrastProblem,
    sums: Sequence[PairSums],
    arithmetic: Arithmetic,
    want: Sequence[bool],
) -> list[TiledSide]:
    """Losses of a batch with itself, or of two sides over each other, and all gradients; empty if tiles don't serve."""
    backend, dtype, operand = arithmetic
    if not backend.has_lanes or not whole_matrices_serve(matrices[0], dtype, operand):
        return []
    suffix, sides, native, sets = module.SUFFIX[dtype], [], [], problem.sets
    for rows, side_sets, side_sums, wanted in zip(matrices, (sets, sets.turned()), sums, want, strict=False):
        X, inverse_norm = rows.to(dtype).contiguous(), rows.new_empty(len(rows), dtype=dtype)
        if not backend.inverse_norms(X, inverse_norm):
            return []
        sides.append(TiledSide(X, inverse_norm, X.new_zeros(X.shape) if wanted else None))
        native.append(native_chunk(side_sums, side_sets, inverse_norm=inverse_norm.data_ptr()))
    settings = settings_of(problem, sides[0].X, sums[0])
    tiles = getattr(module.library, f"ContrastTiles_{suffix}")(
        gemm=module.matrix_product(dtype),
        set_threads=module.set_threads(),
        D=matrices[0].shape[1],
        X=sides[0].X.data_ptr(),
        others=sides[-1].X.data_ptr(),
        dX=module.address(sides[0].dX),
        dothers=module.address(sides[-1].dX),
        alone=len(sides) == 1,
        S_bytes=tile_bytes(len(sides[0].X), len(sides[-1].X), dtype),
        threads=torch.get_num_threads(),
    )
    getattr(module.library, f"pair_contrast_tiles_{suffix}")(native[0], native[-1], settings, tiles)
    return sides


def whole_matrices_serve(anchors: Tensor, dtype: torch.dtype, operand: torch.dtype) -> bool:
    """Whether :func:`symmetric_by_lanes` and :func:`contrast_by_tiles` multiply such rows."""
    return anchors.device.type == "cpu" and operand == dtype and module.matrix_product(dtype) != 0


def symmetric_by_lanes(U: Tensor, S: Tensor, dU: Tensor | None, problem: PairProblem, sums: PairSums) -> None:
    """A batch with itself: unit rows U (n, D), buffer S (n, n) for the cosines; out: dU = dL/dU."""
    (n, D), suffix = U.shape, module.SUFFIX[S.dtype]
    settings = settings_of(problem, U, sums)
    batch = getattr(module.library, f"Batch_{suffix}")(
        gemm=module.matrix_product(S.dtype),
        set_threads=module.set_threads(),
        U=U.data_ptr(),
        n=n,
        D=D,
        S=S.data_ptr(),
        dU=module.address(dU),
        average=problem.average,
        threads=torch.get_num_threads(),
    )
    getattr(module.library, f"{problem.kind}_symmetric_{suffix}")(
        native_chunk(sums, problem.sets, S=S), settings, batch
    )
