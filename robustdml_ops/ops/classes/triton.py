"""The class log-sum-exp of a chunk in Triton."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import Launch, block_of, current, launch, tile_of
from robustdml_ops.engine.rows.triton import TritonRows
from robustdml_ops.ops.classes.problem import ClassBackend, ClassChunk, ClassProblem, ClassSums, ClassUpstream


class TritonClasses(TritonRows, ClassBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def class_lse(self, chunk: ClassChunk, problem: ClassProblem, sums: ClassSums) -> None:
        from robustdml_ops.ops.classes.kernels import class_lse as kernel

        c, B = chunk.classes(problem), chunk.S.shape[1]
        parameters = epilogue_launch(B, chunk.S.dtype, tile_of("class_lse", chunk.S))
        parts, per_part = slices_of(c, int(parameters["BLOCK_C"]), 64)
        partials = chunk.S.new_empty((parts, 2, B))
        with current(chunk.S):
            kernel[-(-B // int(parameters["BLOCK_B"])), parts](
                target=sums.target,
                partials=partials,
                per_part=per_part,
                **_chunk_arguments(chunk, problem),
                **parameters,
            )
            add_slices(partials, sums)

    def class_lse_backward(self, chunk: ClassChunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        from robustdml_ops.ops.classes.kernels import class_lse_backward as kernel

        c, B = chunk.classes(problem), chunk.S.shape[1]
        parameters = epilogue_launch(B, chunk.S.dtype, tile_of("class_lse", chunk.S))
        with current(chunk.S):
            kernel[-(-c // int(parameters["BLOCK_C"])), -(-B // int(parameters["BLOCK_B"]))](
                dS=chunk.S if chunk.dS is None else chunk.dS,
                lse=upstream.lse,
                dlse=upstream.dlse,
                dlogit=upstream.dlogit,
                **_chunk_arguments(chunk, problem),
                **parameters,
            )


def slices_of(classes: int, block: int, most: int) -> tuple[int, int]:
    """How many slices the classes are divided into, ``most`` of them at most, and classes of each: whole blocks."""
    blocks = -(-classes // block)
    per_part = -(-blocks // most)
    return -(-blocks // per_part), per_part * block


def add_slices(partials: Tensor, sums: ClassSums) -> None:
    """Add the partial sums of all slices to ``sums``."""
    from robustdml_ops.ops.classes.kernels import add_partials

    parts, _, B = partials.shape
    parameters = partials_launch(parts)
    add_partials[(-(-B // int(parameters["BLOCK_B"])),)](partials, sums.shift, sums.total, parts, B, **parameters)


def _chunk_arguments(chunk: ClassChunk, problem: ClassProblem) -> dict[str, Any]:
    """Arguments that both epilogues take."""
    c = chunk.classes(problem)
    return {
        "S": chunk.S,
        "labels": problem.labels.labels,
        "c": c,
        "H": problem.centers,
        "B": chunk.S.shape[1],
        "first": chunk.first,
        "POOLING": problem.pooling,
        **problem.arguments(chunk.first, chunk.first + c),
    }


def epilogue_launch(B: int, compute: torch.dtype, tile: Mapping[str, int]) -> Launch:
    """Tile of both epilogues: 8 elements of S a thread, 4 in float64. Beyond 64 samples softmax spills on sm_100."""
    BLOCK_B = block_of(B, tile["samples"])
    elements = tile["elements"] // (2 if compute == torch.float64 else 1)
    return launch(BLOCK_C=elements // BLOCK_B, BLOCK_B=BLOCK_B, num_warps=tile["num_warps"], num_stages=1)


def partials_launch(parts: int) -> Launch:
    """Narrow tiles: a batch of 256 makes 16 programs, and each of them has every part at hand at once."""
    return launch(BLOCK_P=block_of(parts, 128), BLOCK_B=16, num_warps=4, num_stages=1)
