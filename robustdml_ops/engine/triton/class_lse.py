"""The class log-sum-exp in Triton: of a chunk, or of all classes with their similarities in one launch."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.class_problem import ClassChunk, ClassProblem, ClassSums, ClassUpstream
from robustdml_ops.engine.triton.device import current


def class_lse(chunk: ClassChunk, problem: ClassProblem, sums: ClassSums) -> None:
    """Add the classes of ``chunk`` to ``sums``."""
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.class_lse import class_lse as kernel

    c, B = chunk.classes(problem), chunk.S.shape[1]
    parameters = launch.class_lse(B, chunk.S.dtype)
    parts, per_part = _parts(c, int(parameters["BLOCK_C"]), 64)
    partials = chunk.S.new_empty((parts, 2, B))
    with current(chunk.S):
        kernel[-(-B // int(parameters["BLOCK_B"])), parts](
            target=sums.target,
            partials=partials,
            per_part=per_part,
            **_chunk_arguments(chunk, problem),
            **parameters,
        )
        _add(partials, sums)


def class_lse_backward(chunk: ClassChunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
    """S ← dL/dS."""
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.class_lse import class_lse_backward as kernel

    c, B = chunk.classes(problem), chunk.S.shape[1]
    parameters = launch.class_lse(B, chunk.S.dtype)
    with current(chunk.S):
        kernel[-(-c // int(parameters["BLOCK_C"])), -(-B // int(parameters["BLOCK_B"]))](
            lse=upstream.lse,
            dlse=upstream.dlse,
            dlogit=upstream.dlogit,
            **_chunk_arguments(chunk, problem),
            **parameters,
        )


def fused_class_lse(X: Tensor, P: Tensor, problem: ClassProblem, sums: ClassSums) -> bool:
    """Add all classes to ``sums`` in one launch; False, and nothing done, in float64, which the kernel has not.

    Parameters
    ----------
    X : Tensor
        (B, D) unit embeddings in the operand type: float32 or bfloat16; contiguous.
    P : Tensor
        (C·H, D) proxies of any scale and floating type. They are normalised in float32, where they are, and then
        rounded to the operand type, as the sweep does. Products accumulate in float32; float32 operands are rounded to
        TF32 unless ``torch.get_float32_matmul_precision()`` is ``"highest"``.
    """
    if problem.scale.dtype != torch.float32:
        return False
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.fused_class_lse import fused_class_lse as kernel

    (B, D), C = X.shape, len(P) // problem.centers
    input_precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    parameters = launch.fused_class_lse(B, D, X.dtype, problem.pooling != "none", input_precision)
    parts, per_part = _parts(C, int(parameters["BLOCK_C"]), 512)
    partials = sums.target.new_empty((parts, 2, B))
    with current(X):
        kernel[-(-B // int(parameters["BLOCK_B"])), parts](
            X=X,
            P=P,
            labels=problem.labels.labels,
            scale=problem.scale,
            bias=problem.bias,
            target=sums.target,
            partials=partials,
            C=C,
            H=problem.centers,
            B=B,
            per_part=per_part,
            row_stride=P.stride(0),
            column_stride=P.stride(1),
            scale_stride=problem.scale.dim(),
            gamma=problem.gamma,
            D=D,
            NORMALIZE=problem.normalize,
            POOLING=problem.pooling,
            **parameters,
        )
        _add(partials, sums)
    return True


def _parts(classes: int, block: int, most: int) -> tuple[int, int]:
    """How many parts the classes are taken in, and how many classes are in each: whole blocks."""
    blocks = -(-classes // block)
    per_part = -(-blocks // most)
    return -(-blocks // per_part), per_part * block


def _add(partials: Tensor, sums: ClassSums) -> None:
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.class_sums import add_partials

    parts, _, B = partials.shape
    parameters = launch.add_partials(parts)
    add_partials[(-(-B // int(parameters["BLOCK_B"])),)](partials, sums.shift, sums.total, parts, B, **parameters)


def _chunk_arguments(chunk: ClassChunk, problem: ClassProblem) -> dict[str, Any]:
    """Arguments that both epilogues take."""
    c = chunk.classes(problem)
    of_chunk = slice(chunk.first, chunk.first + c)
    return {
        "S": chunk.S,
        "labels": problem.labels.labels,
        "scale": problem.scale if problem.scale.dim() == 0 else problem.scale[of_chunk],
        "bias": None if problem.bias is None else problem.bias[of_chunk],
        "c": c,
        "H": problem.centers,
        "B": chunk.S.shape[1],
        "first": chunk.first,
        "scale_stride": problem.scale.dim(),
        "gamma": problem.gamma,
        "POOLING": problem.pooling,
    }
