# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The first and the last kernel of a planned step on pairs in Triton."""

import triton
import triton.language as tl

from robustdml_ops.engine.rows.kernels import inverse_row_norm, store_unit_rows
from robustdml_ops.ops.pairs.set_kernels import ABSENT, label_of


@triton.jit(do_not_specialize=["n", "ignored"])
def prepare_pairs(
    X,  # (n, D) any floating type, any strides, in: anchors or candidates
    U,  # (n, D) operand dtype, contiguous, out: unit rows; None: not wanted
    inverse_norm,  # (n,) compute dtype, out: 1 / |x|, 0 for zero rows
    given_labels,  # (n, LABELS) int64, in; None: that of row i is i
    labels,  # (n, LABELS) int64, out: ABSENT for rows that are in no set; None: not wanted
    weights,  # (n,) any floating type or bool, in; None: 1
    logit_scale,  # () any floating type, in: logarithm of the scale of the logits; None: ``scale``
    logit_bias,  # () any floating type, in; None: 0
    scales,  # (2, n) compute dtype, out: weight / (samples · divisor) of both sums; None: not wanted
    coefficients,  # (2,) compute dtype, out: scale and bias of the logits; None: not wanted
    n,  # rows, in
    D,  # columns, in
    row_stride,  # of X in elements, in
    column_stride,  # of X in elements, in
    ignored,  # label of rows that are in no set, in
    scale: tl.float64,  # in
    positive_divisor: tl.float64,  # in
    negative_divisor: tl.float64,  # in
    largest: tl.float64,  # the largest weight, in
    IGNORES: tl.constexpr,  # whether ``ignored`` is a label
    ABSENT_ZERO: tl.constexpr,  # whether rows of weight 0 are in no set
    PRESENT: tl.constexpr,  # whether ``samples`` are those of positive weight, or else 1
    LABELS: tl.constexpr,  # labels of a sample
    BLOCK_R: tl.constexpr,  # rows a program
    BLOCK_D: tl.constexpr,  # columns a step
    BLOCK_W: tl.constexpr,  # weights a step
):
    """Unit rows, their labels, and the factors of their sums in the loss."""
    program = tl.program_id(0)
    r = program * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < n
    rows = r.to(tl.int64)
    dtype: tl.constexpr = inverse_norm.dtype.element_ty
    inverse = inverse_row_norm(X + rows * row_stride, inside, D, column_stride, dtype, BLOCK_R, BLOCK_D)
    tl.store(inverse_norm + rows, inverse, mask=inside)
    if U is not None:
        store_unit_rows(U, X + rows * row_stride, rows, inside, inverse, D, column_stride, BLOCK_D)

    label = rows
    if given_labels is not None:
        label = label_of(given_labels, rows, inside, LABELS)
    if IGNORES:
        label = tl.where(label == ignored, ABSENT, label)
    weight = tl.full((BLOCK_R,), 1.0, tl.float64)
    samples = tl.full((), 1.0, tl.float64)
    if weights is not None:
        weight = tl.load(weights + rows, mask=inside, other=0).to(dtype).to(tl.float64)
        tl.device_assert((weight >= 0) & (weight <= largest), "sample_weights must be finite and ≥ 0")
        if ABSENT_ZERO:
            label = tl.where(weight > 0, label, ABSENT)
        if PRESENT:
            # Each program counts all of them: another launch would take longer.
            number = tl.zeros((BLOCK_W,), tl.int32)
            for start in range(0, n, BLOCK_W):
                j = start + tl.arange(0, BLOCK_W)
                number += (tl.load(weights + j, mask=j < n, other=0).to(dtype) > 0).to(tl.int32)
            samples = tl.maximum(tl.sum(number, axis=0), 1).to(tl.float64)
    if labels is not None:
        if LABELS == 1:
            tl.store(labels + rows, label, mask=inside)
        else:
            for k in range(LABELS):
                one = tl.load(given_labels + rows * LABELS + k, mask=inside, other=ABSENT)
                tl.store(labels + rows * LABELS + k, tl.where(label == ABSENT, ABSENT, one), mask=inside)
    if scales is not None:
        tl.store(scales + rows, (weight / (samples * positive_divisor)).to(dtype), mask=inside)
        tl.store(scales + n + rows, (weight / (samples * negative_divisor)).to(dtype), mask=inside)
    if coefficients is not None:
        factor = tl.full((), scale, tl.float64)
        bias = tl.full((), 0.0, tl.float64)
        if logit_scale is not None:
            factor = tl.exp(tl.load(logit_scale).to(tl.float64))
        if logit_bias is not None:
            bias = tl.load(logit_bias).to(tl.float64)
        tl.store(coefficients, factor.to(dtype), mask=program == 0)
        tl.store(coefficients + 1, bias.to(dtype), mask=program == 0)


@triton.jit(do_not_specialize=["n", "parts"])
def finish_pairs(
    positive,  # (parts, n) compute dtype, in: sums of the anchors
    negative,  # (parts, n) compute dtype, in
    positive_counts,  # (parts, n) int64, in: terms above 0, of "terms" alone
    negative_counts,  # (parts, n) int64, in
    positives,  # (n,) compute dtype, in: see pair_contrast; of "above" and "pairs" alone
    has_negatives,  # (n,) compute dtype, in
    scales,  # (2, n) compute dtype, in: factors of both sums; of "terms" also out: divided by their numbers of terms
    dcoefficients,  # (2, n) compute dtype, in: parts of the gradient of the coefficients; None: not wanted
    coefficients,  # (2,) compute dtype, in
    loss,  # () compute dtype, out
    divisor,  # () compute dtype, out: of the gradients; None: 1
    dlogit_scale,  # () any floating type, out; None: not wanted
    dlogit_bias,  # () any floating type, out; None: not wanted
    n,  # anchors, in
    parts,  # in
    OVER: tl.constexpr,  # what the loss is divided by: "terms", losses "above" 0, positive "pairs", or nothing
    BLOCK: tl.constexpr,  # anchors a step
):
    """The loss, by one program in an order that never changes, and the gradients of the coefficients."""
    total_positive = tl.zeros((BLOCK,), tl.float64)
    total_negative = tl.zeros((BLOCK,), tl.float64)
    number_positive = tl.zeros((BLOCK,), tl.float64)
    number_negative = tl.zeros((BLOCK,), tl.float64)
    dscale = tl.zeros((BLOCK,), tl.float64)
    dbias = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < n
        above = tl.zeros((BLOCK,), loss.dtype.element_ty)
        below = tl.zeros((BLOCK,), loss.dtype.element_ty)
        for part in range(0, parts):
            place = part * n + i
            above += tl.load(positive + place, mask=mask, other=0.0)
            below += tl.load(negative + place, mask=mask, other=0.0)
            if OVER == "terms":
                number_positive += tl.load(positive_counts + place, mask=mask, other=0).to(tl.float64)
                number_negative += tl.load(negative_counts + place, mask=mask, other=0).to(tl.float64)
        total_positive += (above * tl.load(scales + i, mask=mask, other=0.0)).to(tl.float64)
        total_negative += (below * tl.load(scales + n + i, mask=mask, other=0.0)).to(tl.float64)
        if OVER == "above":
            number_positive += (above > 0).to(tl.float64)
            number_negative += tl.load(has_negatives + i, mask=mask, other=0.0).to(tl.float64)
        if OVER == "pairs":
            number_positive += tl.load(positives + i, mask=mask, other=0.0).to(tl.float64)
        if dcoefficients is not None:
            dscale += tl.load(dcoefficients + i, mask=mask, other=0.0).to(tl.float64)
            dbias += tl.load(dcoefficients + n + i, mask=mask, other=0.0).to(tl.float64)
    sum_positive, sum_negative = tl.sum(total_positive, axis=0), tl.sum(total_negative, axis=0)
    of_positive = tl.maximum(tl.sum(number_positive, axis=0), 1.0)
    of_negative = tl.maximum(tl.sum(number_negative, axis=0), 1.0)
    if OVER == "terms":
        tl.store(loss, sum_positive / of_positive + sum_negative / of_negative)
        for start in range(0, n, BLOCK):
            i = start + tl.arange(0, BLOCK)
            for_positive, for_negative = tl.load(scales + i, mask=i < n), tl.load(scales + n + i, mask=i < n)
            tl.store(scales + i, for_positive.to(tl.float64) / of_positive, mask=i < n)
            tl.store(scales + n + i, for_negative.to(tl.float64) / of_negative, mask=i < n)
    else:
        if OVER == "above":
            # Without a negative pair there is no loss.
            of_positive = tl.where(tl.sum(number_negative, axis=0) > 0.0, of_positive, float("inf"))
        tl.store(loss, (sum_positive + sum_negative) / of_positive)
        if divisor is not None:
            tl.store(divisor, of_positive)
    if dlogit_scale is not None:
        tl.store(dlogit_scale, tl.sum(dscale, axis=0) * tl.load(coefficients))
    if dlogit_bias is not None:
        tl.store(dlogit_bias, tl.sum(dbias, axis=0))
