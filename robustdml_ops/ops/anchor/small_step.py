"""The anchor sweep of a small step in one Triton launch, and sums of what its programs leave."""

from collections.abc import Mapping

import torch
from torch import Tensor

from robustdml_ops.backends.cards import card
from robustdml_ops.backends.triton_device import Launch, block_of, current, grid_of, launch, rows_are_vectors, tile_of
from robustdml_ops.engine import precision
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.similarity_chunks import Similarities, row_stride
from robustdml_ops.ops.anchor.problem import AnchorProblem, SweepResult

# Samples, columns and classes up to which a step is small: every tile of proxies multiplies the whole batch twice, and
# every program writes a gradient of the batch.
_SAMPLES, _COLUMNS, _CLASSES = 256, 128, 100_000


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
    from robustdml_ops.ops.anchor.small_step_kernel import anchor_step as kernel

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
            upstream_positive=upstream[0],
            upstream_negative=upstream[1],
            totals=totals,
            dX=parts,
            dP=dP,
            B=B,
            C=C,
            row_stride=P.stride(0),
            column_stride=P.stride(1),
            gradient_row_stride=dP.stride(0),
            gradient_column_stride=dP.stride(1),
            upstream_positive_stride=row_stride(upstream[0]),
            upstream_negative_stride=row_stride(upstream[1]),
            D=D,
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
