# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The contrasts of pairs in Triton: softmax and logistic losses by rows, and their gradient."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import log_one_plus
from robustdml_ops.ops.pairs.kernels import ABSENT, pair_tile


@triton.jit
def softplus(
    t,  # compute dtype, in
):
    """log(1 + e^t)."""
    return tl.maximum(t, 0.0) + log_one_plus(tl.exp(-tl.abs(t)))


@triton.jit
def sigmoid(
    t,  # compute dtype, in
):
    """1 / (1 + e^−t)."""
    e = tl.exp(-tl.abs(t))
    return tl.where(t < 0.0, e, 1.0) / (1.0 + e)


@triton.jit(do_not_specialize=["c", "first"])
def pair_contrast(
    S,  # (c, m) compute dtype, contiguous, in: cosines
    dS,  # (c, m) compute or operand dtype, contiguous, out: dL/dS where upstream is given; may be S
    labels,  # (c,) int64, in
    candidate_labels,  # (m,) int64, in
    coefficients,  # (2,) compute dtype, in: scale and bias of the logits
    column_lse,  # (m,) compute dtype, in: log-sum-exps of the candidates over all anchors; None: no columns
    column_upstream,  # (m,) compute dtype, in: dL/dcolumn_lse
    upstream_positive,  # (c,) or () compute dtype, in: dL/dloss; None: no gradients wanted
    upstream_negative,  # (c,) or () compute dtype, in: dL/dlse
    losses,  # (c,) compute dtype, out
    lses,  # (c,) compute dtype, out: 0 in forms without
    dscale,  # (c,) compute dtype, out with upstream: Σ s dL/dz
    dbias,  # (c,) compute dtype, out with upstream: Σ dL/dz
    c,  # anchors of the chunk, in
    m,  # candidates, in
    first,  # anchor of the first row, in
    upstream_positive_stride,  # in elements, in; 0: one value for all anchors
    upstream_negative_stride,  # in elements, in
    ITSELF: tl.constexpr,  # whether candidate i is anchor i
    FORM: tl.constexpr,  # one of FORMS
    BLOCK_R: tl.constexpr,  # anchors a program
    BLOCK_M: tl.constexpr,  # candidates a step
):
    """A loss and a log-sum-exp per row of S, and dL/dS. A program takes whole rows: the same bits every time."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = rows < c
    places = first + rows
    rows = rows.to(tl.int64)
    label = tl.load(labels + rows, mask=inside, other=ABSENT)
    dtype: tl.constexpr = S.dtype.element_ty
    scale, bias = tl.load(coefficients), tl.load(coefficients + 1)
    zeros = tl.zeros((BLOCK_R, BLOCK_M), dtype)

    largest_positive = tl.full((BLOCK_R, BLOCK_M), float("-inf"), dtype)
    largest_negative = tl.full((BLOCK_R, BLOCK_M), float("-inf"), dtype)
    number, of_positives, loss_sum = zeros, zeros, zeros
    for start in range(0, m, BLOCK_M):
        columns = start + tl.arange(0, BLOCK_M)
        s, positive, negative = pair_tile(S, candidate_labels, label, rows, inside, places, columns, m, m, ITSELF)
        z = scale * s + bias
        if FORM == "sigmoid":
            loss_sum += tl.where(positive, softplus(-z), tl.where(negative, softplus(z), 0.0))
        else:
            largest_positive = tl.maximum(largest_positive, tl.where(positive, z, float("-inf")))
            largest_negative = tl.maximum(largest_negative, tl.where(negative, z, float("-inf")))
            number += tl.where(positive, 1.0, 0.0)
    some = tl.sum(number, axis=1) > 0.0
    count = tl.maximum(tl.sum(number, axis=1), 1.0)
    if FORM != "sigmoid":
        label = tl.where(some, label, ABSENT)  # a row without positives has no loss
    end_positive, end_negative = tl.max(largest_positive, axis=1), tl.max(largest_negative, axis=1)
    end = end_negative if FORM == "each" else tl.maximum(end_positive, end_negative)
    # Of a row without them, or of NaN alone, there is no largest.
    end = tl.where(end == float("-inf"), 0.0, end)
    end_positive = tl.where(end_positive == float("-inf"), 0.0, end_positive)
    sum_all, sum_positive = zeros, zeros
    if FORM != "sigmoid":
        for start in range(0, m, BLOCK_M):
            columns = start + tl.arange(0, BLOCK_M)
            s, positive, negative = pair_tile(S, candidate_labels, label, rows, inside, places, columns, m, m, ITSELF)
            z = scale * s + bias
            compared = negative if FORM == "each" else positive | negative
            sum_all += tl.exp(tl.where(compared, z - end[:, None], float("-inf")))
            if FORM == "outside":
                # Of differences: a loss near 0 keeps its digits.
                of_positives += tl.where(positive, end[:, None] - z, 0.0)
            if FORM == "inside":
                sum_positive += tl.exp(tl.where(positive, z - end_positive[:, None], float("-inf")))
    total = tl.sum(sum_all, axis=1)
    total_positive = tl.where(some, tl.sum(sum_positive, axis=1), 1.0)
    empty = total == 0.0
    divisor = tl.where(empty, 1.0, total)
    lse = tl.where(empty, float("-inf"), end + tl.log(divisor))
    above = tl.zeros((BLOCK_R,), dtype)
    if FORM == "each":
        above_sum = zeros
        for start in range(0, m, BLOCK_M):
            columns = start + tl.arange(0, BLOCK_M)
            s, positive, negative = pair_tile(S, candidate_labels, label, rows, inside, places, columns, m, m, ITSELF)
            t = lse[:, None] - (scale * s + bias)
            loss_sum += tl.where(positive, softplus(t), 0.0)
            above_sum += tl.where(positive, sigmoid(t), 0.0)
        above = tl.sum(above_sum, axis=1)
    loss = tl.sum(loss_sum, axis=1)
    if FORM == "outside":
        loss = tl.where(some, tl.log(divisor) + tl.sum(of_positives, axis=1) / count, 0.0)
    elif FORM == "inside":
        inner = end - end_positive + tl.log(divisor) - tl.log(total_positive) + tl.log(count)
        loss = tl.where(some, inner, 0.0)
    tl.store(losses + rows, loss, mask=inside)
    tl.store(lses + rows, tl.where(some & (FORM != "each"), lse, 0.0), mask=inside)
    if upstream_positive is not None:
        upstream = tl.load(upstream_positive + rows * upstream_positive_stride, mask=inside, other=0.0)[:, None]
        of_lse = tl.load(upstream_negative + rows * upstream_negative_stride, mask=inside, other=0.0)[:, None]
        dscale_sum, dbias_sum = zeros, zeros
        for start in range(0, m, BLOCK_M):
            columns = start + tl.arange(0, BLOCK_M)
            s, positive, negative = pair_tile(S, candidate_labels, label, rows, inside, places, columns, m, m, ITSELF)
            z = scale * s + bias
            if FORM == "sigmoid":
                dz = tl.where(positive, -sigmoid(-z), tl.where(negative, sigmoid(z), 0.0)) * upstream
            else:
                compared = negative if FORM == "each" else positive | negative
                share = tl.exp(tl.where(compared, z - end[:, None], float("-inf"))) / divisor[:, None]
                if FORM == "each":
                    dz = (above[:, None] * share - tl.where(positive, sigmoid(lse[:, None] - z), 0.0)) * upstream
                else:
                    target = tl.where(positive, 1.0 / count[:, None], 0.0)
                    if FORM == "inside":
                        target = tl.exp(tl.where(positive, z - end_positive[:, None], float("-inf")))
                        target = target / total_positive[:, None]
                    dz = (share - target) * upstream + share * of_lse
                if column_lse is not None:
                    known = columns < m
                    column = tl.load(column_lse + columns, mask=known, other=float("inf"))[None, :]
                    of_column = tl.load(column_upstream + columns, mask=known, other=0.0)[None, :]
                    dz += tl.exp(tl.where(compared, z - column, float("-inf"))) * of_column
            dscale_sum += dz * s
            dbias_sum += dz
            mask = inside[:, None] & (columns < m)[None, :]
            tl.store(dS + rows[:, None] * m + columns[None, :], dz * scale, mask=mask)
        tl.store(dscale + rows, tl.sum(dscale_sum, axis=1), mask=inside)
        tl.store(dbias + rows, tl.sum(dbias_sum, axis=1), mask=inside)
