# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The anchor log-sum-exp in Triton.

What a tile of cosines adds; the epilogue between the matrix products; and, where no gradient is asked for, similarity
and log-sum-exp in one launch: neither cosines nor unit proxies are written.
"""

import triton
import triton.language as tl

from robustdml_ops.rows.kernels import embedding_columns, inverse_row_norm, unit_rows
from robustdml_ops.triton_math import in_type, log_one_plus_sum


@triton.jit
def candidate_exponents(
    s,  # (BLOCK_C, BLOCK_B) compute dtype, in: cosines
    labels,  # (B,) int64, in; None: the values tell the sets
    values,  # confidences or their logits of the anchors, any floating type, in; None: the labels tell
    positive_bias,  # (B,) compute dtype, in
    negative_bias,  # (B,) compute dtype, in
    anchor_bias,  # one per row, compute dtype, in; None: none
    rows,  # (BLOCK_C,) int64, in: rows of values and anchor_bias
    classes,  # (BLOCK_C,) int32, in: classes of the anchors
    inside,  # (BLOCK_C,) bool, in: which rows exist
    columns,  # (BLOCK_B,) int32, in: candidates
    B,  # candidates in all, in
    anchor_stride,  # of values in elements, in
    candidate_stride,  # of values in elements, in
    alpha,  # compute dtype, in
    beta,  # compute dtype, in
    threshold,  # compute dtype, in
    ARE_LOGITS: tl.constexpr,  # whether the values still have to go through the sigmoid
):
    """Exponent ∓α·s + bias, weight, and membership of X_p⁺, all (BLOCK_C, BLOCK_B).

    A candidate is in one of an anchor's two sets only, so one exponent and one exponential serve both; it is −∞ where
    there is no pair. The weight σ(β|c − λ|) is between 1/2 and 1: it multiplies the exponential, and no logarithm is
    needed.
    """
    mask = inside[:, None] & (columns < B)[None, :]
    if labels is not None:
        # 32 bits hold every class, and a thread keeps the labels of many candidates in registers.
        y = tl.load(labels + columns, mask=columns < B, other=-1).to(tl.int32)
        positive = y[None, :] == classes[:, None]
        weight = tl.full(s.shape, 1.0, s.dtype)
    else:
        offset = rows[:, None] * anchor_stride + columns.to(tl.int64)[None, :] * candidate_stride
        confidence = tl.load(values + offset, mask=mask, other=0.0).to(s.dtype)
        if ARE_LOGITS:
            confidence = tl.sigmoid(confidence)
        positive = confidence > threshold
        weight = tl.sigmoid(tl.abs(confidence - threshold) * beta)
    scaled = s * alpha
    positive_exponent = tl.load(positive_bias + columns, mask=columns < B, other=0.0)[None, :] - scaled
    negative_exponent = tl.load(negative_bias + columns, mask=columns < B, other=0.0)[None, :] + scaled
    if anchor_bias is not None:
        negative_exponent += tl.load(anchor_bias + rows, mask=inside, other=0.0)[:, None]
    exponent = tl.where(mask, tl.where(positive, positive_exponent, negative_exponent), float("-inf"))
    return exponent, weight, positive


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
    """Both running maxima and sums after a tile.

    The maxima begin at 0, the exponent of the 1 in log(1 + Σ): so −∞ never meets −∞, and an empty set needs no case.
    """
    new_positive = tl.maximum(max_positive, tl.max(tl.where(positive, exponent, float("-inf")), axis=1))
    new_negative = tl.maximum(max_negative, tl.max(tl.where(positive, float("-inf"), exponent), axis=1))
    term = weight * tl.exp(exponent - tl.where(positive, new_positive[:, None], new_negative[:, None]))
    sum_positive = sum_positive * tl.exp(max_positive - new_positive) + tl.sum(tl.where(positive, term, 0.0), axis=1)
    sum_negative = sum_negative * tl.exp(max_negative - new_negative) + tl.sum(tl.where(positive, 0.0, term), axis=1)
    return new_positive, sum_positive, new_negative, sum_negative


@triton.jit(do_not_specialize=["c", "first"])
def anchor_lse(
    S,  # (c, B) compute dtype, contiguous, in: cosines
    dS,  # (c, B) compute or operand dtype, contiguous, out: dL/dS where upstream is given; may be S
    labels,  # (B,) int64, in; None: the values tell the sets
    values,  # (c, B) compute dtype, in: confidences or their logits; None: the labels tell
    positive_bias,  # (B,) compute dtype, in
    negative_bias,  # (B,) compute dtype, in
    anchor_bias,  # (c,) compute dtype, in; None: none
    upstream_positive,  # (c,) or () compute dtype, in: dL/dpositive; None: no gradients wanted
    upstream_negative,  # (c,) or () compute dtype, in
    lse_positive,  # (c,) compute dtype, out
    lse_negative,  # (c,) compute dtype, out
    bias_partials,  # (programs, 2, B) compute dtype, out: dL/dbias of each program's anchors; None: not wanted
    c,  # anchors of the chunk, in
    B,  # candidates, in
    first,  # class of the first row, in
    anchor_stride,  # of values in elements, in
    candidate_stride,  # of values in elements, in
    upstream_positive_stride,  # in elements, in; 0: one value for all anchors
    upstream_negative_stride,  # in elements, in
    alpha: tl.float64,  # in
    beta: tl.float64,  # in
    threshold: tl.float64,  # in
    ARE_LOGITS: tl.constexpr,  # whether the values still have to go through the sigmoid
    BLOCK_C: tl.constexpr,  # anchors a program
    BLOCK_B: tl.constexpr,  # candidates a step
):
    """Two log-sum-exps per row of S, and dL/dS. Nothing is added across programs: the same bits every time."""
    rows = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = rows < c
    classes = first + rows
    rows = rows.to(tl.int64)
    dtype: tl.constexpr = S.dtype.element_ty
    alpha, beta, threshold = in_type(alpha, dtype), in_type(beta, dtype), in_type(threshold, dtype)

    max_positive = tl.zeros((BLOCK_C,), dtype=dtype)
    sum_positive = tl.zeros((BLOCK_C,), dtype=dtype)
    max_negative = tl.zeros((BLOCK_C,), dtype=dtype)
    sum_negative = tl.zeros((BLOCK_C,), dtype=dtype)
    for start in range(0, B, BLOCK_B):
        columns = start + tl.arange(0, BLOCK_B)
        mask = inside[:, None] & (columns < B)[None, :]
        s = tl.load(S + rows[:, None] * B + columns[None, :], mask=mask, other=0.0)
        exponent, weight, positive = candidate_exponents(
            s, labels, values, positive_bias, negative_bias, anchor_bias,
            rows, classes, inside, columns, B, anchor_stride, candidate_stride,
            alpha, beta, threshold, ARE_LOGITS,
        )  # fmt: skip
        max_positive, sum_positive, max_negative, sum_negative = add_candidates(
            exponent, weight, positive, max_positive, sum_positive, max_negative, sum_negative
        )
    tl.store(lse_positive + rows, log_one_plus_sum(max_positive, sum_positive), mask=inside)
    tl.store(lse_negative + rows, log_one_plus_sum(max_negative, sum_negative), mask=inside)

    if upstream_positive is not None:
        # dlse/dexponent = weight · e^(exponent − max) / (e^−max + Σ): the quotient is one number per anchor.
        factor_positive = tl.load(upstream_positive + rows * upstream_positive_stride, mask=inside, other=0.0)
        factor_negative = tl.load(upstream_negative + rows * upstream_negative_stride, mask=inside, other=0.0)
        factor_positive /= tl.exp(-max_positive) + sum_positive
        factor_negative /= tl.exp(-max_negative) + sum_negative
        for start in range(0, B, BLOCK_B):
            columns = start + tl.arange(0, BLOCK_B)
            mask = inside[:, None] & (columns < B)[None, :]
            s = tl.load(S + rows[:, None] * B + columns[None, :], mask=mask, other=0.0)
            exponent, weight, positive = candidate_exponents(
                s, labels, values, positive_bias, negative_bias, anchor_bias,
                rows, classes, inside, columns, B, anchor_stride, candidate_stride,
                alpha, beta, threshold, ARE_LOGITS,
            )  # fmt: skip
            shift = tl.where(positive, max_positive[:, None], max_negative[:, None])
            factor = tl.where(positive, factor_positive[:, None], factor_negative[:, None])
            dexponent = weight * tl.exp(exponent - shift) * factor
            slope = tl.where(positive, -dexponent, dexponent) * alpha
            tl.store(dS + rows[:, None] * B + columns[None, :], slope, mask=mask)
            if bias_partials is not None:
                partial = bias_partials + tl.program_id(0).to(tl.int64) * 2 * B + columns
                tl.store(partial, tl.sum(tl.where(positive, dexponent, 0.0), axis=0), mask=columns < B)
                tl.store(partial + B, tl.sum(tl.where(positive, 0.0, dexponent), axis=0), mask=columns < B)


@triton.jit
def fused_anchor_lse(
    X,  # (B, D) operand dtype, contiguous, in: unit embeddings
    P,  # (C, D) any floating type, any strides, in: proxies of any norm
    labels,  # (B,) int64, in; None: the values tell the sets
    values,  # (C, B) any floating type, in: confidences; None: the labels tell
    positive_bias,  # (B,) float32, in
    negative_bias,  # (B,) float32, in
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
    input_precision: tl.constexpr,  # of float32 operands: "ieee" or "tf32"
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
        exponent, weight, positive = candidate_exponents(
            s, labels, values, positive_bias, negative_bias, anchor_bias,
            rows, classes, inside, columns, B, anchor_stride, candidate_stride,
            alpha, beta, threshold, False,
        )  # fmt: skip
        max_positive, sum_positive, max_negative, sum_negative = add_candidates(
            exponent, weight, positive, max_positive, sum_positive, max_negative, sum_negative
        )
    tl.store(lse_positive + rows, log_one_plus_sum(max_positive, sum_positive), mask=inside)
    tl.store(lse_negative + rows, log_one_plus_sum(max_negative, sum_negative), mask=inside)
