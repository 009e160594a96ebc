# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The anchor log-sum-exp in Triton: the epilogue between the matrix products."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type, log_one_plus_sum
from robustdml_ops.engine.rows.kernels import inverse_row_norm
from robustdml_ops.engine.rows.step_kernels import sum_counts

# A row's sum up to which no shift is needed: exponentials have room below the largest number, and their quotient by
# the sum, times an upstream gradient, above the smallest.
LARGE = tl.constexpr(2.0**64)
LOG2_E = tl.constexpr(1.4426950408889634)


# Arguments of the kernel that go together:
# ``given``: labels, label_weights, values, positive_bias, negative_bias, anchor_bias, drop_similar_negatives, B,
# anchor_stride, candidate_stride, alpha, beta, threshold, bias (these four in the compute type), ARE_LOGITS,
# labels_each, as the kernel below has them;
# ``anchors``: rows (BLOCK_C,) int64 of values and anchor_bias, classes (BLOCK_C,) int32, and inside (BLOCK_C,) bool:
# which rows exist.


@triton.jit
def bias_of(
    bias,  # (B,) compute dtype, in; None: number
    number,  # compute dtype, in
    columns,  # (BLOCK_B,) int32, in: candidates
    exist,  # (BLOCK_B,) bool, in
    log2e,  # compute dtype, in
):
    """Bias / log 2 of the candidates, (1, BLOCK_B); −∞ of those that do not exist."""
    if bias is None:
        found = tl.where(exist, number * log2e, float("-inf"))
    else:
        found = tl.load(bias + columns, mask=exist, other=float("-inf")) * log2e
    return found[None, :]


@triton.jit
def candidate_exponents(
    s,  # (BLOCK_C, BLOCK_B) compute dtype, in: cosines
    given,  # in: see above
    anchors,  # in: see above
    columns,  # (BLOCK_B,) int32, in: candidates
):
    """Exponent (∓α·s + bias)/log 2, weight, and membership of X_p⁺, all (BLOCK_C, BLOCK_B).

    One exponential serves both sets, as a candidate is in one of them; the exponent is −∞ in columns that do not exist
    and of negatives above their limits, and arbitrary in rows that do not exist. The weight multiplies the exponential:
    that of the label, or σ(β|c − λ|) between 1/2 and 1.
    """
    labels, label_weights, values, positive_bias, negative_bias, anchor_bias, drop_similar_negatives, B = given[:8]
    anchor_stride, candidate_stride, alpha, beta, threshold, number, ARE_LOGITS, labels_each = given[8:]
    rows, classes, inside = anchors
    exist = columns < B
    if labels is not None:
        # 32 bits hold every class, and a thread keeps the labels of many candidates in registers.
        positive = tl.full(s.shape, 0, tl.int1)
        weight = tl.full(s.shape, 1.0, s.dtype)
        for j in range(0, labels_each):
            y = tl.load(labels + columns * labels_each + j, mask=exist, other=-1).to(tl.int32)
            own = y[None, :] == classes[:, None]
            positive |= own
            if label_weights is not None:
                own_weight = tl.load(label_weights + columns * labels_each + j, mask=exist, other=0.0)
                weight = tl.where(own, own_weight[None, :], weight)
    else:
        offset = rows[:, None] * anchor_stride + columns.to(tl.int64)[None, :] * candidate_stride
        confidence = tl.load(values + offset, mask=inside[:, None] & exist[None, :], other=0.0).to(s.dtype)
        if ARE_LOGITS:
            confidence = tl.sigmoid(confidence)
        positive = confidence > threshold
        weight = tl.sigmoid(tl.abs(confidence - threshold) * beta)
    log2e = in_type(LOG2_E, s.dtype)
    bias = bias_of(positive_bias, number, columns, exist, log2e)
    if negative_bias is not None or anchor_bias is not None:
        other_bias = bias
        if negative_bias is not None:
            other_bias = tl.load(negative_bias + columns, mask=exist, other=float("-inf"))[None, :] * log2e
        if anchor_bias is not None:
            other_bias = other_bias + tl.load(anchor_bias + rows, mask=inside, other=0.0)[:, None] * log2e
        bias = tl.where(positive, bias, other_bias)
    exponent = s * tl.where(positive, -alpha * log2e, alpha * log2e) + bias
    if drop_similar_negatives is not None:
        limit = tl.load(drop_similar_negatives + columns, mask=exist, other=0.0)[None, :]
        exponent = tl.where((s > limit) & ~positive, float("-inf"), exponent)
    return exponent, weight, positive


@triton.jit
def over_rows(
    S,  # (c, B) compute dtype, contiguous, in: cosines, or those times the anchors' lengths
    inverse,  # (BLOCK_C,) compute dtype, in: 1 / length; None: S holds cosines
    given,  # in: see candidate_exponents
    anchors,  # in: see candidate_exponents
    max_positive,  # (BLOCK_C,) compute dtype, in: shift of the exponents in the sums
    max_negative,  # (BLOCK_C,) compute dtype, in
    B,  # candidates, in
    MAXIMA: tl.constexpr,  # whether maxima are wanted, or else sums
    BLOCK_C: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Σ weight · e^(exponent − max), or max(0, largest exponent), of each row over both sets, (BLOCK_C,) each."""
    rows, _, inside = anchors
    of_positive = tl.zeros((BLOCK_C, BLOCK_B), dtype=S.dtype.element_ty)
    of_negative = tl.zeros((BLOCK_C, BLOCK_B), dtype=S.dtype.element_ty)
    for start in range(0, B, BLOCK_B):
        columns = start + tl.arange(0, BLOCK_B)
        mask = inside[:, None] & (columns < B)[None, :]
        s = tl.load(S + rows[:, None] * B + columns[None, :], mask=mask, other=0.0)
        if inverse is not None:
            s *= inverse[:, None]
        exponent, weight, positive = candidate_exponents(s, given, anchors, columns)
        if MAXIMA:
            of_positive = tl.maximum(of_positive, tl.where(positive, exponent, 0.0))
            of_negative = tl.maximum(of_negative, tl.where(positive, 0.0, exponent))
        else:
            term = weight * tl.exp2(exponent - tl.where(positive, max_positive[:, None], max_negative[:, None]))
            of_positive += tl.where(positive, term, 0.0)
            of_negative += tl.where(positive, 0.0, term)
    if MAXIMA:
        return tl.max(of_positive, axis=1), tl.max(of_negative, axis=1)
    return tl.sum(of_positive, axis=1), tl.sum(of_negative, axis=1)


@triton.jit
def any_label(
    labels,  # (B, K) int64, in
    classes,  # (BLOCK_C,) int32, in: consecutive
    B,  # candidates, in
    labels_each,  # K, in
    BLOCK_B: tl.constexpr,
):
    """Whether a candidate has a label among the classes of this program, int1."""
    lowest, highest = tl.min(classes, axis=0), tl.max(classes, axis=0)
    found = tl.zeros((BLOCK_B,), dtype=tl.int32)
    for start in range(0, B * labels_each, BLOCK_B):
        places = start + tl.arange(0, BLOCK_B)
        label = tl.load(labels + places, mask=places < B * labels_each, other=-1)
        found |= ((label >= lowest) & (label <= highest)).to(tl.int32)
    return tl.max(found, axis=0) > 0


@triton.jit
def negative_exponents(
    start,  # first candidate, in
    S,  # (c, B) compute dtype, contiguous, in
    inverse,  # (BLOCK_C,) compute dtype, in; None
    given,  # in: see candidate_exponents
    anchors,  # in: see candidate_exponents
    B,  # candidates, in
    WHOLE: tl.constexpr,  # whether B is a multiple of BLOCK_B
    BLOCK_B: tl.constexpr,
):
    """Exponents of rows without a positive, (BLOCK_C, BLOCK_B), with the bits of candidate_exponents."""
    negative_bias = given[3] if given[4] is None else given[4]
    anchor_bias, alpha, number = given[5], given[10], given[13]
    rows, _, inside = anchors
    columns = start + tl.arange(0, BLOCK_B)
    exist = (columns < B) | WHOLE
    s = tl.load(S + rows[:, None] * B + columns[None, :], mask=inside[:, None] & exist[None, :], other=0.0)
    if inverse is not None:
        s *= inverse[:, None]
    log2e = in_type(LOG2_E, s.dtype)
    bias = bias_of(negative_bias, number, columns, exist, log2e)
    if anchor_bias is not None:
        bias = bias + tl.load(anchor_bias + rows, mask=inside, other=0.0)[:, None] * log2e
    return s * (alpha * log2e) + bias


@triton.jit(do_not_specialize=["c", "first", "first_program"])
def anchor_lse(
    S,  # (c, B) compute dtype, contiguous, in: cosines, or V·x
    dS,  # (c, B) compute or operand dtype, contiguous, out: dL/dS where upstream is given; may be S
    V,  # (c, D) operand dtype, in: anchors as S has them, and dS is dL/d(V·x); None: S holds cosines
    labels,  # (B,) or (B, K) int64, in; None: the values tell the sets
    values,  # (c, B) compute dtype, in: confidences or their logits; None: the labels tell
    positive_bias,  # (B,) compute dtype, in; None: bias
    negative_bias,  # (B,) compute dtype, in; None: the positive one
    anchor_bias,  # (c,) compute dtype, in; None: none
    drop_similar_negatives,  # (B,) compute dtype, in: negatives of a larger cosine are left out; None: none
    counts,  # (parts,) int32, in: parts of |P⁺|; dL/dpositive = 1 / |P⁺|, dL/dnegative = 1 / |P|; None: upstream_*
    totals,  # (all programs,) float64, out: Σ dL/dlse · lse of each program's anchors; None exactly where counts is
    upstream_positive,  # (c,) or () compute dtype, in: dL/dpositive; None: no gradients wanted, unless by counts
    upstream_negative,  # (c,) or () compute dtype, in
    lse_positive,  # (c,) compute dtype, out; None: not wanted, as with totals
    lse_negative,  # (c,) compute dtype, out
    bias_partials,  # (programs, 2, B) compute dtype, out: dL/dbias of each program's anchors; None: not wanted
    c,  # anchors of the chunk, in
    B,  # candidates, in
    first,  # class of the first row, in
    first_program,  # place of the first program in totals, in
    parts,  # of counts, in
    proxies,  # |P|, in
    row_stride,  # of V in elements, in
    column_stride,  # of V in elements, in
    D,  # columns of V, in
    anchor_stride,  # of values in elements, in
    candidate_stride,  # of values in elements, in
    upstream_positive_stride,  # in elements, in; 0: one value for all anchors
    upstream_negative_stride,  # in elements, in
    label_weights,  # (B, K) compute dtype, in: of positives; None: 1
    alpha: tl.float64,  # in
    beta: tl.float64,  # in
    threshold: tl.float64,  # in
    bias: tl.float64,  # in: of both sums, where positive_bias is None
    ARE_LOGITS: tl.constexpr,  # whether the values still have to go through the sigmoid
    labels_each: tl.constexpr,  # K
    WHOLE: tl.constexpr,  # whether B is a multiple of BLOCK_B
    BLOCK_C: tl.constexpr,  # anchors a program
    BLOCK_B: tl.constexpr,  # candidates a step
    BLOCK_D: tl.constexpr,  # columns of V a step
):
    """Two log-sum-exps per row of S, shifted where a sum is too large, and dL/dS: the same bits every time."""
    rows = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = rows < c
    classes = first + rows
    rows = rows.to(tl.int64)
    dtype: tl.constexpr = S.dtype.element_ty
    alpha, beta, threshold = in_type(alpha, dtype), in_type(beta, dtype), in_type(threshold, dtype)
    bias = in_type(bias, dtype)

    given = (
        labels, label_weights, values, positive_bias, negative_bias, anchor_bias, drop_similar_negatives, B,
        anchor_stride, candidate_stride, alpha, beta, threshold, bias, ARE_LOGITS, labels_each,
    )  # fmt: skip
    anchors = (rows, classes, inside)
    max_positive = tl.zeros((BLOCK_C,), dtype=dtype)
    max_negative = tl.zeros((BLOCK_C,), dtype=dtype)
    inverse = None
    if V is not None:
        inverse = inverse_row_norm(V + rows * row_stride, inside, D, column_stride, dtype, BLOCK_C, BLOCK_D)
    # Of 10⁶ classes one program in a hundred has a positive: the others take loops that look at no label.
    SIMPLE: tl.constexpr = labels is not None and drop_similar_negatives is None and bias_partials is None
    mixed = tl.full((), 1, tl.int1)
    if SIMPLE:
        mixed = any_label(labels, classes, B, labels_each, BLOCK_B)
    if mixed:
        sum_positive, sum_negative = over_rows(
            S, inverse, given, anchors, max_positive, max_negative, B, False, BLOCK_C, BLOCK_B
        )
    else:
        of_negative = tl.zeros((BLOCK_C, BLOCK_B), dtype=dtype)
        for start in range(0, B, BLOCK_B):
            of_negative += tl.exp2(negative_exponents(start, S, inverse, given, anchors, B, WHOLE, BLOCK_B))
        sum_positive, sum_negative = tl.zeros((BLOCK_C,), dtype=dtype), tl.sum(of_negative, axis=1)
    large_positive, large_negative = sum_positive > LARGE, sum_negative > LARGE
    if tl.max((large_positive | large_negative).to(tl.int32), axis=0) > 0:
        mixed = tl.full((), 1, tl.int1)
        highest_positive, highest_negative = over_rows(
            S, inverse, given, anchors, max_positive, max_negative, B, True, BLOCK_C, BLOCK_B
        )
        # Only rows that need it are shifted: what a row gives must not depend on its neighbours.
        max_positive = tl.where(large_positive, highest_positive, 0.0)
        max_negative = tl.where(large_negative, highest_negative, 0.0)
        sum_positive, sum_negative = over_rows(
            S, inverse, given, anchors, max_positive, max_negative, B, False, BLOCK_C, BLOCK_B
        )
    of_positive = log_one_plus_sum(max_positive / LOG2_E, sum_positive)
    of_negative = log_one_plus_sum(max_negative / LOG2_E, sum_negative)
    if lse_positive is not None:
        tl.store(lse_positive + rows, of_positive, mask=inside)
        tl.store(lse_negative + rows, of_negative, mask=inside)

    if upstream_positive is not None or counts is not None:
        if counts is not None:
            one = tl.full((BLOCK_C,), 1.0, dtype)
            factor_positive = one / sum_counts(counts, parts, BLOCK_B).to(dtype)
            factor_negative = one / tl.full((), proxies, dtype)
            terms = factor_positive * of_positive + factor_negative * of_negative
            total = tl.sum(tl.where(inside, terms, 0.0).to(tl.float64), axis=0)
            tl.store(totals + first_program + tl.program_id(0), total)
        else:
            factor_positive = tl.load(upstream_positive + rows * upstream_positive_stride, mask=inside, other=0.0)
            factor_negative = tl.load(upstream_negative + rows * upstream_negative_stride, mask=inside, other=0.0)
        # dlse/dexponent = weight · e^(exponent − max) / (e^−max + Σ): the quotient is one number per anchor.
        factor_positive *= -alpha / (tl.exp2(-max_positive) + sum_positive)
        factor_negative *= alpha / (tl.exp2(-max_negative) + sum_negative)
        # Gradients of the biases are of dL/ds itself.
        FOLDED: tl.constexpr = inverse is not None and bias_partials is None
        if FOLDED:
            factor_positive *= inverse
            factor_negative *= inverse
        if mixed:
            for start in range(0, B, BLOCK_B):
                columns = start + tl.arange(0, BLOCK_B)
                mask = inside[:, None] & (columns < B)[None, :]
                s = tl.load(S + rows[:, None] * B + columns[None, :], mask=mask, other=0.0)
                if inverse is not None:
                    s *= inverse[:, None]
                exponent, weight, positive = candidate_exponents(s, given, anchors, columns)
                shift = tl.where(positive, max_positive[:, None], max_negative[:, None])
                factor = tl.where(positive, factor_positive[:, None], factor_negative[:, None])
                slope = weight * tl.exp2(exponent - shift) * factor
                places = dS + rows[:, None] * B + columns[None, :]
                tl.store(places, slope if inverse is None or FOLDED else slope * inverse[:, None], mask=mask)
                if bias_partials is not None:
                    # The exponents are −α·s + bias and +α·s + bias.
                    partial = bias_partials + tl.program_id(0).to(tl.int64) * 2 * B + columns
                    tl.store(partial, tl.sum(tl.where(positive, slope, 0.0), axis=0) / -alpha, mask=columns < B)
                    tl.store(partial + B, tl.sum(tl.where(positive, 0.0, slope), axis=0) / alpha, mask=columns < B)
        else:
            for start in range(0, B, BLOCK_B):
                slope = tl.exp2(negative_exponents(start, S, inverse, given, anchors, B, WHOLE, BLOCK_B))
                columns = start + tl.arange(0, BLOCK_B)
                mask = inside[:, None] & ((columns < B) | WHOLE)[None, :]
                tl.store(dS + rows[:, None] * B + columns[None, :], slope * factor_negative[:, None], mask=mask)
