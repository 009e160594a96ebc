# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The epilogue between the matrix products: log-sum-exps over the batch, and their gradient in place of the cosines."""

import triton
import triton.language as tl

from robustdml_ops.engine.triton.kernels.candidates import (
    add_candidates,
    candidate_exponents,
    in_type,
    log_one_plus_sum,
)


@triton.jit(do_not_specialize=["c", "first"])
def anchor_lse(
    S,  # (c, B) compute dtype, contiguous, in: cosines; out: dL/dS where upstream is given
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
    """Two log-sum-exps per row of S, and S ← dL/dS. Nothing is added across programs: the same bits every time."""
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
            dS = tl.where(positive, -dexponent, dexponent) * alpha
            tl.store(S + rows[:, None] * B + columns[None, :], dS, mask=mask)
            if bias_partials is not None:
                partial = bias_partials + tl.program_id(0).to(tl.int64) * 2 * B + columns
                tl.store(partial, tl.sum(tl.where(positive, dexponent, 0.0), axis=0), mask=columns < B)
                tl.store(partial + B, tl.sum(tl.where(positive, 0.0, dexponent), axis=0), mask=columns < B)
