"""The class sums of all classes in one Triton launch, where no gradient is wanted."""

from collections.abc import Mapping

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import (
    Launch,
    block_of,
    current,
    fused_pays,
    launch,
    rows_are_vectors,
    tile_of,
)
from robustdml_ops.engine import precision
from robustdml_ops.ops.classes.problem import ClassProblem, ClassSums
from robustdml_ops.ops.classes.triton import add_slices, slices_of


def fused_forward_serves(X: Tensor, problem: ClassProblem) -> bool:
    """Whether the kernel takes it: not in float64, and not for rows longer than pay."""
    return problem.scale.dtype == torch.float32 and fused_pays(X)


def fused_forward(X: Tensor, P: Tensor, problem: ClassProblem, sums: ClassSums) -> None:
    """Add all classes to ``sums``, of unit rows X (B, D) in the operand type and proxies P (C·H, D)."""
    from robustdml_ops.ops.classes.fused_kernel import fused_class_lse as kernel

    (B, D), C = X.shape, len(P) // problem.centers
    input_precision = precision.input_precision(X.device)
    pooled, tile = problem.pooling != "none", tile_of("fused_class_lse", X)
    parameters = fused_launch(B, D, X.dtype, pooled, input_precision, rows_are_vectors(P), tile)
    parts, per_part = slices_of(C, int(parameters["BLOCK_C"]), 512)
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
        add_slices(partials, sums)


def fused_launch(
    B: int, D: int, operand: torch.dtype, pooled: bool, input_precision: str, vectors: bool, tile: Mapping[str, int]
) -> Launch:
    """Tile of the fused forward: whole embeddings up to D = 128; fewer classes where pooling needs registers."""
    if operand == torch.float32 and input_precision == "ieee":
        return launch(BLOCK_C=64, BLOCK_B=32, BLOCK_D=16, num_warps=4, num_stages=2, input_precision=input_precision)
    threefold = operand == torch.float32 and input_precision == "tf32x3"
    if not vectors or threefold:
        BLOCK_B = 32 if pooled and threefold else 64
        return launch(
            BLOCK_C=64, BLOCK_B=BLOCK_B, BLOCK_D=16, num_warps=8, num_stages=2, input_precision=input_precision
        )
    return launch(
        BLOCK_C=tile["classes"] // (2 if pooled or operand == torch.float32 else 1),
        BLOCK_B=block_of(B, tile["samples"]),
        BLOCK_D=block_of(D, 128) if D <= 128 else 32,
        num_warps=tile["num_warps"],
        num_stages=2,
        input_precision=input_precision,
    )
