"""The sums of pairs in the native module, of a chunk and by whole sweeps, and the launches of Triton's kernels."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.triton_device import Launch, block_of, current, grid_of, launch, tile_of
from robustdml_ops.engine.rows.backends import NativeRows, TritonRows, gradient_buffer
from robustdml_ops.engine.similarity_chunks import Chunk, upstream_arguments
from robustdml_ops.ops.pairs.backends import (
    FORMS,
    Arithmetic,
    DistanceLimits,
    PairBackend,
    PairOptions,
    PairProblem,
    PairSums,
)
from robustdml_ops.ops.pairs.sets import PairSets, SetsKind, members

# Elements of the candidates up to which lanes are as fast as all threads on a chunk: each block of a thread has its own
# gradient of the candidates. Rows count at least so many columns, as a row of S has to fit a core's cache.
_MOST_ELEMENTS, _LEAST_COLUMNS = 1 << 19, 32
# Bytes of S that stay between both passes of tiles, where that is a twentieth of it at least.
_S_BYTES = 160 << 20
# Places in the enumeration PairWay of csrc/pairs/cpu_whole.h.
WAYS = ("batch", "tiles", "anchors", "candidates")
# Native structures of the problems.
_STRUCTS = {"pair_lse": "PairLSE", "pair_hinge": "PairHinge", "pair_contrast": "PairContrast"}
# As cuda::Element of csrc/rows/cuda.h.
_ELEMENT = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
# Programs of Triton that fill a GPU, whatever the GPU, so that the bits are the same.
_PROGRAMS = 2 * 132


class NativePairs(NativeRows, PairBackend):
    """On the CPU and on CUDA devices."""

    has_lanes = True

    def pair_sums(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        S, first, sets, sums = chunk.S, chunk.first, problem.sets, sums.of(chunk)
        settings = settings_of(problem, chunk.V, sums, first)
        if module.on_gpu(S):
            if sums.hardest is not None:
                sums.see(S, *members(sets, first, chunk.last))
            given = native_chunk(sums, sets, first, S, "_cuda")
        else:
            norms = {"inverse_norm": chunk.scale, "candidate_inverse_norm": chunk.X_scale}
            relations = {"relations": sets.relations, "relations_row": first}
            given = native_chunk(sums, sets, first, S, **relations, **module.addresses(norms))
        module.call(problem.options.kind, S, given, settings)

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
        turned = problem.sets.turned()  # whose labels the chunk reads
        related = turned if way == "candidates" else problem.sets
        rows = columns = native_chunk(sums[0], problem.sets, relations=related.relations)
        if len(sums) == 2:
            columns = native_chunk(sums[1], turned)
        shape = native_shape(way, X, X if candidates is None else candidates, dtype, problem.options.average)
        served = getattr(module.library, f"{problem.options.kind}_whole_{module.SUFFIX[dtype]}")(
            shape,
            settings_of(problem, X, sums[0]),
            rows,
            columns,
            *map(module.address, (X, candidates, gradients[0], dcandidates)),
        )
        return (gradients[0], dcandidates) if served else None

    def keeps_cosines(self, S: Tensor, problem: PairProblem) -> bool:
        return module.on_gpu(S)


def settings_of(problem: PairProblem, operands: Tensor, sums: PairSums, first: int = 0) -> Any:
    """The problem as a native structure; counts, dcoefficients and ``first`` are of a chunk."""
    options, dtype = problem.options, sums.positive.dtype
    fields = native_numbers(problem.arguments(dtype))
    if sums.counts is not None:
        fields |= dict(zip(("positive_count", "negative_count"), sums.counts, strict=True))
    if options.kind == "pair_contrast":
        fields["dscale"], fields["dbias"] = (None, None) if sums.dcoefficients is None else sums.dcoefficients
    if sums.rows is not None:
        anchors, candidates = sums.rows
        elements = {"anchors_element": _ELEMENT[anchors.dtype], "candidates_element": _ELEMENT[candidates.dtype]}
        rows = {"anchors": anchors[first:], "candidates": candidates, "D": anchors.shape[1]}
        fields |= {**DistanceLimits.of(operands)._asdict(), **rows, **elements}
    return native_problem(options, dtype, module.addresses(fields))


def native_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of kernels as fields of the native structures."""
    return {**arguments, "form": FORMS.index(arguments["form"])} if "form" in arguments else arguments


def native_problem(options: PairOptions, dtype: torch.dtype, fields: dict[str, Any]) -> Any:
    """A native structure of these fields."""
    return getattr(module.library, f"{_STRUCTS[options.kind]}_{module.SUFFIX[dtype]}")(**fields)


def native_chunk(
    sums: PairSums,
    sets: PairSets,
    first: int = 0,
    S: Tensor | None = None,
    kind: str = "",
    relations: Any = None,
    **given: int,
) -> Any:
    """Anchors from ``first`` on, as many as ``sums`` holds, as a ``PairChunk`` of the native module."""
    labels, candidate_labels = (sets.labels, sets.candidate_labels) if kind else sets.narrow
    if relations is not None:
        given["relations"] = relations.address()
    if sums.hardest is not None and not kind:
        given |= module.addresses(dict(zip(HARDEST, sums.hardest, strict=True)))
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


class TritonPairs(TritonRows, PairBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def pair_sums(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        S, V, sets, kind = chunk.S, chunk.V, problem.sets, problem.options.kind
        (c, m), n, new = S.shape, len(sums.positive), S.new_empty
        upstream = upstream_arguments(sums.upstream)
        strides = upstream["upstream_positive_stride"], upstream["upstream_negative_stride"]
        place = ChunkPlace(chunk.first, c, n, m, V.shape[1])
        launches, parts = pair_launches(problem.options, place, S, V, sets.kind, strides)
        sides: Any = (sums.positive, sums.negative)
        dS = S if chunk.dS is None else chunk.dS
        of_sets = sets.labels, sets.candidate_labels, sets.ids, sets.candidate_ids
        common = S, dS, *of_sets, chunk.X_scale, *(upstream[name] for name in UPSTREAM)
        own: Any
        hardest: Any = (None, None) if sums.hardest is None else sums.hardest.unbind()
        if kind == "pair_lse":
            own = problem.candidate_weights, *sides, None if parts == 1 else new((8, parts, c))
        elif kind == "pair_hinge":
            assert sums.counts is not None
            sides = (*sides, *sums.counts)
            of_parts = sides if parts == 1 else [total.new_empty((parts, n)) for total in sides]
            own = *of_parts, *(sums.rows or (S, S))  # S in place of rows that are not read
            if hardest[0] is not None and parts > 1:
                hardest = S.new_empty((2, parts, n)).unbind()
        else:
            d = (None, None) if sums.dcoefficients is None else sums.dcoefficients
            own = problem.coefficients, problem.column_lse, problem.column_upstream, *sides, *d, None, None
        tensors = dict(zip(COMMON + OWN[kind], (*common, *own, *hardest), strict=True))
        with current(S):
            for kernel, grid, fixed in launches:
                kernel[grid](**tensors, **fixed)
        if kind == "pair_hinge" and parts > 1:
            here = slice(chunk.first, chunk.last)
            for of_part, total in zip(own, sides, strict=False):
                torch.sum(of_part[:, here], 0, out=total[here])
            if sums.hardest is not None:
                torch.amin(hardest[0][:, here], 0, out=sums.hardest[0, here])
                torch.amax(hardest[1][:, here], 0, out=sums.hardest[1, here])

    def keeps_cosines(self, S: Tensor, problem: PairProblem) -> bool:
        return not problem.options.euclidean


# Tensors of the kernels, of all and of each.
UPSTREAM = ("upstream_positive", "upstream_negative")
COMMON = ("S", "dS", "labels", "candidate_labels", "ids", "candidate_ids", "candidate_inverse_norm", *UPSTREAM)
SUMS = {
    "pair_lse": ("lse_positive", "lse_negative"),
    "pair_hinge": ("sums_positive", "sums_negative"),
    "pair_contrast": ("losses", "lses"),
}
COUNTS = ("positive_counts", "negative_counts", "counts_positive", "counts_negative")
HARDEST = ("hardest_positive", "hardest_negative")
OWN = {
    "pair_lse": ("candidate_weights", "lse_positive", "lse_negative", "partials", *HARDEST),
    "pair_hinge": (
        *("sums_positive", "sums_negative", "counts_positive", "counts_negative", "anchors", "candidates"),
        *HARDEST,
    ),
    "pair_contrast": (
        *("coefficients", "column_lse", "column_upstream", "losses", "lses", "dscale", "dbias"),
        *("positives", "has_negatives", *HARDEST),
    ),
}


class ChunkPlace(NamedTuple):
    """Sizes of a chunk of anchors."""

    first: int  # anchor
    c: int  # anchors of the chunk
    n: int  # anchors in all
    m: int  # candidates
    D: int


class PairLaunch(NamedTuple):
    """A kernel, its programs, and all of its arguments that are no tensors."""

    kernel: Any
    grid: tuple[int, ...]
    fixed: dict[str, Any]


def pair_launches(
    options: PairOptions,
    place: ChunkPlace,
    sums: Tensor,
    operands: Tensor,
    sets: SetsKind,
    strides: tuple[int, int],
    parts: tuple[int, int] | None = None,
) -> tuple[list[PairLaunch], int]:
    """The launches of a chunk's epilogue, and the number of parts in which they take candidates.

    ``sums`` and ``operands`` have the types of S and of the products' operands, ``strides`` are those of the upstream
    gradients. ``parts``: as of :func:`parts_of`, where they are not those of the chunk.
    """
    first, c, n, m, D = place
    tile = epilogue_launch(m, sums.dtype, tile_of("pairs", sums), options.euclidean, sets.labels > 1)
    grid, given = grid_of(c, tile["BLOCK_R"]), options.arguments(m, sums.dtype)
    given |= {"c": c, "m": m, "first": first, **sets.constants(), **tile}
    given |= {"upstream_positive_stride": strides[0], "upstream_negative_stride": strides[1]}
    if options.kind == "pair_contrast":
        from robustdml_ops.ops.pairs.loss_kernels import pair_contrast

        given["FORM"] = given.pop("form")
        return [PairLaunch(pair_contrast, grid, given)], 1
    count, per_part = parts or parts_of(grid[0], m, int(tile["BLOCK_M"]))
    given["per_part"] = per_part
    if options.kind == "pair_hinge":
        from robustdml_ops.ops.pairs.loss_kernels import pair_hinge

        given |= {"n": n, "D": D, "EUCLIDEAN": given.pop("euclidean"), **DistanceLimits.of(operands)._asdict()}
        return [PairLaunch(pair_hinge, (*grid, count), given)], count
    from robustdml_ops.ops.pairs.kernels import pair_lse

    given |= {"MINING": given.pop("mining"), "ROW_MAX": given.pop("row_max")}
    given |= {"parts": count, "BLOCK_P": 1 << (count - 1).bit_length()}
    stages = [("all", 1)]
    if count > 1:
        extrema = [("extrema", count)] * (given["MINING"] or given["ROW_MAX"])
        stages = [*extrema, ("sums", count), ("gradients", count)]
    return [PairLaunch(pair_lse, (*grid, width), {**given, "STAGE": stage}) for stage, width in stages], count


def parts_of(programs: int, m: int, block: int) -> tuple[int, int]:
    """How many slices m candidates are divided into, and candidates of each: whole blocks, at least four."""
    # Few anchors would leave a GPU idle.
    blocks = -(-m // block)
    parts = max(1, min(_PROGRAMS // programs, blocks // 4))
    per_part = -(-blocks // parts)
    return -(-blocks // per_part), per_part * block


def epilogue_launch(
    m: int, compute: torch.dtype, tile: Mapping[str, int], distances: bool = False, several: bool = False
) -> Launch:
    """Tile of the epilogues on pairs: 8 elements of S a thread; fewer where registers would spill.

    That is in float64, there with ``distances`` again, and with ``several`` labels a sample.
    """
    halved = (1 if compute != torch.float64 else 4 if distances else 2) * (2 if several else 1)
    elements, num_warps = tile["elements"] // halved, tile["num_warps"] // (2 if halved >= 4 else 1)
    BLOCK_M = block_of(m, min(elements, tile["candidates"]))
    return launch(BLOCK_R=elements // BLOCK_M, BLOCK_M=BLOCK_M, num_warps=num_warps, num_stages=1)
