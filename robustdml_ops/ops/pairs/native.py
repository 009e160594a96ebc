"""The sums of pairs in the native module: of a chunk, and whole sweeps by lanes, one call each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.rows.backends import NativeRows, gradient_buffer
from robustdml_ops.engine.similarity_chunks import Chunk, upstream_arguments
from robustdml_ops.ops.pairs.problem import (
    Arithmetic,
    PairBackend,
    PairHingeProblem,
    PairProblem,
    PairSets,
    PairSums,
)

# Elements of the candidates up to which lanes are as fast as all threads on a chunk: each block of a thread has its own
# gradient of the candidates. Rows count at least so many columns, as a row of S has to fit a core's cache.
_MOST_ELEMENTS, _LEAST_COLUMNS = 1 << 19, 32
# Bytes of S that stay between both passes of tiles, where that is a twentieth of it at least.
_S_BYTES = 160 << 20
# Places in the enumeration PairWay of csrc/pairs/cpu_whole.h.
WAYS = ("batch", "tiles", "anchors", "candidates")
# Native structures of the problems.
STRUCTS = {"pair_lse": "PairLSE", "pair_hinge": "PairHinge", "pair_contrast": "PairContrast"}


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

    def whole_sweep(
        self,
        way: str,
        matrices: Sequence[Tensor],
        problem: PairProblem,
        sums: Sequence[PairSums],
        arithmetic: Arithmetic,
        want: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None] | None:
        (anchors, *others), (_, dtype, operand) = matrices, arithmetic
        if way not in WAYS or not whole_matrices_serve(anchors, dtype, operand):
            return None
        half = way == "candidates" and others[0].dtype == torch.bfloat16
        X, *others = (one.to(one.dtype if half and one is not anchors else dtype).contiguous() for one in matrices)
        gradients = [gradient_buffer(one) if wanted else None for one, wanted in zip((X, *others), want, strict=False)]
        candidates, dcandidates = (others[0], gradients[1]) if others else (None, None)
        rows = columns = native_chunk(sums[0], problem.sets)
        turned = problem.sets.turned()  # whose labels the chunk reads
        if len(sums) == 2:
            columns = native_chunk(sums[1], turned)
        shape = native_shape(way, X, X if candidates is None else candidates, dtype, problem.average)
        served = getattr(module.library, f"{problem.kind}_whole_{module.SUFFIX[dtype]}")(
            shape,
            settings_of(problem, X, sums[0]),
            rows,
            columns,
            *map(module.address, (X, candidates, gradients[0], dcandidates)),
        )
        return (gradients[0], dcandidates) if served else None

    def keeps_cosines(self, S: Tensor, problem: PairHingeProblem) -> bool:
        return module.on_gpu(S)


def settings_of(problem: PairProblem, operands: Tensor, sums: PairSums, first: int = 0) -> Any:
    """The problem as a native structure; counts, dcoefficients and ``first`` are of a chunk."""
    fields, suffix = problem.native_fields(sums, operands, first), module.SUFFIX[sums.positive.dtype]
    return getattr(module.library, f"{STRUCTS[problem.kind]}_{suffix}")(**module.addresses(fields))


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


def whole_matrices_serve(anchors: Tensor, dtype: torch.dtype, operand: torch.dtype) -> bool:
    """Whether the native module makes whole sweeps over such rows."""
    return anchors.device.type == "cpu" and operand == dtype and module.matrix_product(dtype) != 0


def native_shape(way: str, anchors: Tensor, candidates: Tensor, dtype: torch.dtype, average: bool) -> Any:
    """What sweeps over such matrices by ``way``, one of :data:`WAYS`, have in common, as a native structure."""
    (n, D), m, threads = anchors.shape, len(candidates), torch.get_num_threads()
    rows, columns = (m, n) if way == "candidates" else (n, m)
    return getattr(module.library, f"PairShape_{module.SUFFIX[dtype]}")(
        gemm=module.matrix_product(dtype),
        set_threads=module.set_threads(),
        n=n,
        m=m,
        D=D,
        way=WAYS.index(way),
        chunk_rows=min(rows, module.lane_rows(rows, (columns + 2 * D) * dtype.itemsize, threads)),
        S_bytes=_S_BYTES if n * m * dtype.itemsize <= 20 * _S_BYTES else 0,
        average=average,
        bfloat16=candidates.dtype == torch.bfloat16,
        threads=threads,
    )
