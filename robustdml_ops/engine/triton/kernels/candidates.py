# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What both anchor kernels do with a tile of cosines: sets, exponents and their running log-sum-exp."""

import triton
import triton.language as tl


@triton.jit
def in_type(
    number,  # float64, in
    dtype: tl.constexpr,  # the type to compute in
):
    """Turn the number into ``dtype``: a float64 argument would make everything it meets float64."""
    return tl.full((), number, dtype)


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


@triton.jit
def log_one_plus_sum(
    shift,  # (BLOCK_C,) compute dtype, in: at least 0
    total,  # (BLOCK_C,) compute dtype, in: Σ weight · e^(exponent − shift)
):
    """log(1 + Σ weight · e^exponent)."""
    # Where nothing was shifted a sum far below 1 must not be rounded away: log1p by Kahan's quotient, in which the
    # error of 1 + total cancels.
    one_plus = 1.0 + total
    quotient = tl.log(one_plus) * (total / tl.where(one_plus == 1.0, 1.0, one_plus - 1.0))
    log1p = tl.where(one_plus == 1.0, total, quotient)
    return tl.where(shift == 0.0, log1p, shift + tl.log(tl.exp(-shift) + total))
