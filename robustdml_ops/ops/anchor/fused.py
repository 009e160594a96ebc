"""The anchor log-sum-exp in one Triton launch: the values alone, or a small step with its gradients."""

from collections.abc import Mapping

import torch
from torch import Tensor

from robustdml_ops.backends.cards import card
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
from robustdml_ops.engine.similarity_chunks import Similarities
from robustdml_ops.ops.anchor.problem import AnchorProblem, SweepResult, upstream_arguments
from robustdml_ops.ops.anchor.triton import set_arguments

_OPERANDS = (torch.float32, torch.bfloat16, torch.float16)
# Samples, columns and classes up to which a step is small: every tile of proxies multiplies the whole batch twice, and
# every program writes a gradient of the batch.
_SAMPLES, _COLUMNS, _CLASSES = 256, 128, 100_000


def fused_forward_serves(X: Tensor, problem: AnchorProblem) -> bool:
    """Whether the kernel takes it: not in float64, not for logits of confidences, not for rows longer than pay."""
    sets = problem.sets
    if X.dtype not in _OPERANDS or problem.positive_bias.dtype != torch.float32 or not fused_pays(X):
        return False
    return isinstance(sets, LabelSets) or not sets.are_logits


def fused_forward(X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor]:
    """Both log-sum-exps (C,) of every proxy P (C, D), any scale, with unit rows X (B, D) in the operand type."""
    from robustdml_ops.ops.anchor.fused_kernels import fused_anchor_lse as kernel

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
    exact = operand == torch.float32 and input_precision in ("ieee", "tf32x3")
    if exact or not vectors:
        num_warps = 4 if exact and input_precision == "ieee" else 8
        blocks = {"BLOCK_C": 64, "BLOCK_B": 64, "BLOCK_D": 16}
        return launch(**blocks, num_warps=num_warps, num_stages=2, input_precision=input_precision)
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


def small_step_serves(similarities: Similarities, problem: AnchorProblem, result: SweepResult) -> bool:
    """Whether :func:`small_step` gives all that is wanted, and the table of cards prefers it.

    It takes labels and gives the total with both gradients. Exact float32 products would need tiles of 16 proxies.
    """
    X, C = similarities.X, similarities.count
    if card(X.device).small_step != "fused" or not isinstance(problem.sets, LabelSets):
        return False
    if len(X) > _SAMPLES or X.shape[1] > _COLUMNS or C > _CLASSES:
        return False
    if X.dtype != torch.bfloat16 and (X.dtype != torch.float32 or precision.exact_float32_products(X.device)):
        return False
    if result.lse_positive is not None or result.dpositive_bias is not None:
        return False
    return similarities.dX is not None and similarities.dP is not None


def small_step(
    similarities: Similarities, problem: AnchorProblem, upstream: tuple[Tensor, Tensor], result: SweepResult
) -> None:
    """Total, dX and dP of a sweep that :func:`small_step_serves`; proxies and dP are stored by rows or by columns."""
    from robustdml_ops.ops.anchor.fused_kernels import anchor_step as kernel

    X, P, dX, dP = similarities.X, similarities.proxies, similarities.dX, similarities.dP
    (B, D), C = X.shape, len(P)
    assert isinstance(problem.sets, LabelSets) and dX is not None and dP is not None and result.total is not None
    vectors = rows_are_vectors(P) and rows_are_vectors(dP)
    parameters = step_launch(B, D, X.dtype, vectors, tile_of("anchor_step", X))
    programs = min(int(parameters["PROGRAMS"]), *grid_of(C, parameters["BLOCK_C"]))
    totals, parts = X.new_empty(programs, dtype=torch.float64), X.new_empty((programs, B, D), dtype=torch.float32)
    with current(X):
        kernel[(programs,)](
            X=X,
            P=P,
            labels=problem.sets.labels,
            totals=totals,
            dX=parts,
            dP=dP,
            B=B,
            C=C,
            row_stride=P.stride(0),
            column_stride=P.stride(1),
            gradient_row_stride=dP.stride(0),
            gradient_column_stride=dP.stride(1),
            D=D,
            **upstream_arguments(upstream),
            **problem.distinct_arguments(0, C),
            **parameters,
        )
    torch.sum(parts, 0, out=dX)
    torch.sum(totals, 0, out=result.total)


def step_launch(B: int, D: int, operand: torch.dtype, vectors: bool, tile: Mapping[str, int]) -> Launch:
    """Tile of the small step: whole rows of proxies, as many as the registers hold beside both gradients."""
    half = operand.itemsize == 2
    anchors, candidates, num_warps = 64 if half or vectors else 32, 16, 8
    if half and vectors:
        anchors, candidates, num_warps = tile["anchors"], tile["candidates"], tile["num_warps"]
    return launch(
        BLOCK_C=anchors,
        BLOCK_B=block_of(B, candidates),
        BLOCK_D=block_of(D, _COLUMNS),
        PROGRAMS=tile["programs"],
        num_warps=num_warps,
        num_stages=1,
    )
