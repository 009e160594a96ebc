"""All anchor log-sum-exps in one Triton launch, where no gradient is wanted."""

from collections.abc import Mapping

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import (
    Launch,
    block_of,
    current,
    fused_pays,
    grid_of,
    launch,
    rows_are_vectors,
    tile_of,
)
from robustdml_ops.engine import precision
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.ops.anchor.problem import AnchorProblem
from robustdml_ops.ops.anchor.triton import set_arguments

_OPERANDS = (torch.float32, torch.bfloat16, torch.float16)


def fused_forward_serves(X: Tensor, problem: AnchorProblem) -> bool:
    """Whether the kernel takes it: not in float64, not for logits of confidences, not for rows longer than pay."""
    sets = problem.sets
    if X.dtype not in _OPERANDS or problem.positive_bias.dtype != torch.float32 or not fused_pays(X):
        return False
    return isinstance(sets, LabelSets) or not sets.are_logits


def fused_forward(X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor]:
    """Both log-sum-exps (C,) of every proxy P (C, D), any scale, with unit rows X (B, D) in the operand type."""
    from robustdml_ops.ops.anchor.fused_kernel import fused_anchor_lse as kernel

    (B, D), C, sets = X.shape, len(P), problem.sets
    # The confidences as they are: a copy in the compute type would be of size B×C.
    values = None if isinstance(sets, LabelSets) or sets.confidences is None else sets.confidences.t()
    input_precision = precision.input_precision(X.device)
    vectors, tile = rows_are_vectors(P), tile_of("fused_anchor_lse", X)
    parameters = fused_launch(B, D, X.dtype, values is None, input_precision, vectors, tile)
    lse_positive, lse_negative = problem.positive_bias.new_empty((2, C))
    with current(X):
        kernel[grid_of(C, parameters["BLOCK_C"])](
            X=X,
            P=P,
            values=values,
            lse_positive=lse_positive,
            lse_negative=lse_negative,
            B=B,
            C=C,
            row_stride=P.stride(0),
            column_stride=P.stride(1),
            D=D,
            **problem.distinct_arguments(0, C),
            **set_arguments(sets, values),
            **parameters,
        )
    return lse_positive, lse_negative


def fused_launch(
    B: int,
    D: int,
    operand: torch.dtype,
    labels: bool,
    input_precision: str,
    vectors: bool,
    tile: Mapping[str, int],
) -> Launch:
    """Tile of the fused forward, within the registers: whole rows of proxies up to D = 128, else 32 columns a step.

    IEEE float32 runs on the ordinary cores; it, threefold TF32, and rows that can't be read as vectors need small
    tiles.
    """
    if operand == torch.float32 and input_precision == "ieee":
        return launch(BLOCK_C=64, BLOCK_B=64, BLOCK_D=16, num_warps=4, num_stages=2, input_precision=input_precision)
    if not vectors or (operand == torch.float32 and input_precision == "tf32x3"):
        return launch(BLOCK_C=64, BLOCK_B=64, BLOCK_D=16, num_warps=8, num_stages=2, input_precision=input_precision)
    anchors, candidates = 64, 64
    if labels and operand.itemsize == 2:
        long = "" if D <= 128 else "long_"
        anchors, candidates = tile[f"{long}anchors"], tile[f"{long}candidates"]
    return launch(
        BLOCK_C=anchors,
        BLOCK_B=block_of(B, candidates),
        BLOCK_D=block_of(D, 128) if D <= 128 else 32,
        num_warps=tile["num_warps"],
        num_stages=3 if operand.itemsize == 2 else 2,
        input_precision=input_precision,
    )
