# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Similarities and log-sum-exps in one launch, without a gradient: neither cosines nor unit proxies are written."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type, log_one_plus_sum
from robustdml_ops.engine.rows.kernels import embedding_columns, inverse_row_norm, unit_rows
from robustdml_ops.ops.anchor.kernels import LOG2_E, candidate_exponents


@triton.jit
def add_candidates(
    exponent,  # (BLOCK_C, BLOCK_B) compute dtype, in
    weight,  # (BLOCK_C, BLOCK_B) compute dtype, in
    positive,  # (BLOCK_C, BLOCK_B) bool, in
    max_positive,  # (BLOCK_C,) compute dtype, in: largest exponent so far, at least 0
    sum_positive,  # (BLOCK_C,) compute dtype, in: Σ weight · e^(exponent − max) so far
    max_negative,  # (BLOCK_C,) compute dtype, in
    sum_negative,  # (BLOCK_C,) compute dtype, in
):
    """Both running maxima, from 0 on, and sums after a tile, of exponents of 2; −∞ never meets −∞."""
    new_positive = tl.maximum(max_positive, tl.max(tl.where(positive, exponent, float("-inf")), axis=1))
    new_negative = tl.maximum(max_negative, tl.max(tl.where(positive, float("-inf"), exponent), axis=1))
    term = weight * tl.exp2(exponent - tl.where(positive, new_positive[:, None], new_negative[:, None]))
    sum_positive = sum_positive * tl.exp2(max_positive - new_positive) + tl.sum(tl.where(positive, term, 0.0), axis=1)
    sum_negative = sum_negative * tl.exp2(max_negative - new_negative) + tl.sum(tl.where(positive, 0.0, term), axis=1)
    return new_positive, sum_positive, new_negative, sum_negative


@triton.jit
def fused_anchor_lse(
    X,  # (B, D) operand dtype, contiguous, in: unit embeddings
    P,  # (C, D) any floating type, any strides, in: proxies of any norm
    labels,  # (B,) int64, in; None: the values tell the sets
    values,  # (C, B) any floating type, in: confidences; None: the labels tell
    positive_bias,  # (B,) float32, in
    negative_bias,  # (B,) float32, in; None: the positive one
    anchor_bias,  # (C,) float32, in; None: none
    lse_positive,  # (C,) float32, out
    lse_negative,  # (C,) float32, out
    B,  # candidates, in
    C,  # anchors, in
    row_stride,  # of P in elements, in
    column_stride,  # of P in elements, in
    anchor_stride,  # of values in elements, in
    candidate_stride,  # of values in elements, in
    alpha: tl.float64,  # in
    beta: tl.float64,  # in
    threshold: tl.float64,  # in
    D: tl.constexpr,  # columns of X and P
    input_precision: tl.constexpr,  # of float32 operands: "ieee", "tf32x3" or "tf32"
    BLOCK_C: tl.constexpr,  # anchors a program
    BLOCK_B: tl.constexpr,  # candidates a step
    BLOCK_D: tl.constexpr,  # columns a step
):
    """Two log-sum-exps per proxy over the batch. Products accumulate in float32."""
    rows = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = rows < C
    classes = rows
    rows = rows.to(tl.int64)
    p_rows = P + rows * row_stride
    operand: tl.constexpr = X.dtype.element_ty
    inverse = inverse_row_norm(p_rows, inside, D, column_stride, tl.float32, BLOCK_C, BLOCK_D)
    if D <= BLOCK_D:
        U = unit_rows(p_rows, inside, inverse, 0, D, column_stride, operand, BLOCK_D)
    alpha, beta, threshold = in_type(alpha, tl.float32), in_type(beta, tl.float32), in_type(threshold, tl.float32)
    given = (
        labels, values, positive_bias, negative_bias, anchor_bias, B,
        anchor_stride, candidate_stride, alpha, beta, threshold, False,
    )  # fmt: skip
    anchors = (rows, classes, inside)

    max_positive = tl.zeros((BLOCK_C,), dtype=tl.float32)
    sum_positive = tl.zeros((BLOCK_C,), dtype=tl.float32)
    max_negative = tl.zeros((BLOCK_C,), dtype=tl.float32)
    sum_negative = tl.zeros((BLOCK_C,), dtype=tl.float32)
    for b in range(0, B, BLOCK_B):
        columns = b + tl.arange(0, BLOCK_B)
        if D <= BLOCK_D:
            s = tl.dot(U, embedding_columns(X, columns, 0, B, D, BLOCK_D), input_precision=input_precision)
        else:
            s = tl.zeros((BLOCK_C, BLOCK_B), dtype=tl.float32)
            for start in range(0, D, BLOCK_D):
                u = unit_rows(p_rows, inside, inverse, start, D, column_stride, operand, BLOCK_D)
                x = embedding_columns(X, columns, start, B, D, BLOCK_D)
                s = tl.dot(u, x, s, input_precision=input_precision)
        exponent, weight, positive = candidate_exponents(s, given, anchors, columns)
        max_positive, sum_positive, max_negative, sum_negative = add_candidates(
            exponent, weight, positive, max_positive, sum_positive, max_negative, sum_negative
        )
    tl.store(lse_positive + rows, log_one_plus_sum(max_positive / LOG2_E, sum_positive), mask=inside)
    tl.store(lse_negative + rows, log_one_plus_sum(max_negative / LOG2_E, sum_negative), mask=inside)
