# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The log-sum-exps of pairs in Triton."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type, log_one_plus_sum, one_plus_sum
from robustdml_ops.ops.pairs.set_kernels import add_hardest, label_of, of_cosines, pair_tile


@triton.jit
def informative(
    s,  # (BLOCK_R, BLOCK_M) compute dtype, in
    positive,  # (BLOCK_R, BLOCK_M) bool, in
    negative,  # (BLOCK_R, BLOCK_M) bool, in
    lowest_positive,  # (BLOCK_R,) compute dtype, in
    highest_negative,  # (BLOCK_R,) compute dtype, in
    epsilon,  # compute dtype, in
):
    """Mining: the informative pairs of both sets. Negated, so that a NaN stays and reaches the result."""
    informative_positive = positive & ((s - epsilon >= highest_negative[:, None]) == 0)
    informative_negative = negative & ((s + epsilon <= lowest_positive[:, None]) == 0)
    return informative_positive, informative_negative


@triton.jit
def pair_terms(
    s,  # (BLOCK_R, BLOCK_M) compute dtype, in
    positive,  # (BLOCK_R, BLOCK_M) bool, in: the informative ones
    negative,  # (BLOCK_R, BLOCK_M) bool, in
    alpha,  # compute dtype, in
    beta,  # compute dtype, in
    base,  # compute dtype, in
    max_positive,  # (BLOCK_R,) compute dtype, in: shift of the exponents
    max_negative,  # (BLOCK_R,) compute dtype, in
):
    """Exponentials of both sides, (BLOCK_R, BLOCK_M): a pair is in one set only. 0 where it is in none."""
    exponent = tl.where(negative, beta * (s - base) - max_negative[:, None], float("-inf"))
    return tl.exp(tl.where(positive, alpha * (base - s) - max_positive[:, None], exponent))


@triton.jit
def store_part(
    partials,  # (8, parts, c) compute dtype, out
    quantity: tl.constexpr,
    part,  # in
    parts,  # in
    c,  # anchors of the chunk, in
    rows,  # (BLOCK_R,) int64, in
    inside,  # (BLOCK_R,) bool, in
    value,  # (BLOCK_R,) in
):
    """Store one quantity of this slice of the candidates."""
    place = partials + (quantity * parts + part).to(tl.int64) * c + rows
    tl.store(place, value.to(partials.dtype.element_ty), mask=inside)


@triton.jit
def load_parts(
    partials,  # (8, parts, c) compute dtype, in
    quantity: tl.constexpr,
    parts,  # in
    c,  # anchors of the chunk, in
    rows,  # (BLOCK_R,) int64, in
    inside,  # (BLOCK_R,) bool, in
    nothing,  # what parts that do not exist give, in
    BLOCK_P: tl.constexpr,  # the power of two that holds the parts
):
    """One quantity of all slices, (BLOCK_R, BLOCK_P), in an order that never changes."""
    part = tl.arange(0, BLOCK_P)
    place = partials + (quantity * parts + part).to(tl.int64)[None, :] * c + rows[:, None]
    return tl.load(place, mask=inside[:, None] & (part < parts)[None, :], other=nothing)


@triton.jit(do_not_specialize=["c", "first", "parts", "per_part"])
def pair_lse(
    S,  # (c, m) compute dtype, contiguous, in: cosines, or products of unit anchors with candidates as they are
    dS,  # (c, m) compute or operand dtype, contiguous, out: dL/dS where upstream is given; may be S
    labels,  # (n, LABELS) int64, in
    candidate_labels,  # (m, LABELS) int64, in
    ids,  # (n, IDS) int64, in: see pair_tile; None: none
    candidate_ids,  # (m, IDS) int64, in
    candidate_inverse_norm,  # (m,) compute dtype, in: 1 / |candidate|, and dS is by the products; None: S has cosines
    candidate_weights,  # (m,) compute dtype, in; None: none
    upstream_positive,  # (n,) or () compute dtype, in: dL/dpositive; None: no gradients wanted
    upstream_negative,  # (n,) or () compute dtype, in
    lse_positive,  # (n,) compute dtype, out
    lse_negative,  # (n,) compute dtype, out
    partials,  # (8, parts, c) compute dtype, in/out: extrema, sums, weights, counts of each part; None: one part
    hardest_positive,  # (n,) compute dtype, out: least cosine over P, ∞ without any; None: not wanted
    hardest_negative,  # (n,) compute dtype, out: largest cosine over N, or −∞
    c,  # anchors of the chunk, in
    m,  # candidates, in
    first,  # anchor of the first row, in: the vectors (n,) have all of them
    parts,  # in which candidates are taken, in
    per_part,  # candidates of a part, in
    upstream_positive_stride,  # in elements, in; 0: one value for all anchors
    upstream_negative_stride,  # in elements, in
    alpha: tl.float64,  # in
    beta: tl.float64,  # in
    base: tl.float64,  # in
    epsilon: tl.float64,  # in
    ITSELF: tl.constexpr,  # whether candidate i is anchor i
    LABELS: tl.constexpr,  # labels of a sample
    IDS: tl.constexpr,  # ids of a sample
    KEEPS_POSITIVES: tl.constexpr,  # whether ids are of negatives alone
    MINING: tl.constexpr,  # whether informative pairs alone stay
    ROW_MAX: tl.constexpr,  # whether rows are shifted by their maximum
    STAGE: tl.constexpr,  # "all"; or of candidates in parts "extrema", "sums", "gradients", a launch each
    BLOCK_R: tl.constexpr,  # anchors a program
    BLOCK_M: tl.constexpr,  # candidates a step
    BLOCK_P: tl.constexpr,  # parts, or the next power of two
):
    """Two log-sum-exps per row of S, and dL/dS. Programs add nothing to each other's sums: the same bits every time."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = rows < c
    places = first + rows
    rows = rows.to(tl.int64)
    part = tl.program_id(1)
    begin = part * per_part
    end = tl.minimum(begin + per_part, m)
    label = label_of(labels, places, inside, LABELS)
    sets = (labels, candidate_labels, ids, candidate_ids, candidate_inverse_norm)
    of_rows = (label, rows, inside, places)
    dtype: tl.constexpr = S.dtype.element_ty
    alpha, beta = in_type(alpha, dtype), in_type(beta, dtype)
    base, epsilon = in_type(base, dtype), in_type(epsilon, dtype)

    lowest_positive = tl.full((BLOCK_R,), float("inf"), dtype)
    highest_negative = tl.full((BLOCK_R,), float("-inf"), dtype)
    if STAGE == "sums" or STAGE == "gradients":
        if MINING or ROW_MAX or (STAGE == "gradients" and hardest_positive is not None):
            lowest_positive = tl.min(load_parts(partials, 0, parts, c, rows, inside, float("inf"), BLOCK_P), axis=1)
            highest_negative = tl.max(load_parts(partials, 1, parts, c, rows, inside, float("-inf"), BLOCK_P), axis=1)
    elif MINING or ROW_MAX:
        # Tiles, reduced once at the end: a reduction in each step would cost more than the step.
        lowest = tl.full((BLOCK_R, BLOCK_M), float("inf"), dtype)
        highest = tl.full((BLOCK_R, BLOCK_M), float("-inf"), dtype)
        for start in range(begin, end, BLOCK_M):
            columns = start + tl.arange(0, BLOCK_M)
            s, positive, negative = pair_tile(S, sets, of_rows, columns, m, end, ITSELF, LABELS, IDS, KEEPS_POSITIVES)
            lowest = tl.minimum(lowest, tl.where(positive, s, float("inf")))
            highest = tl.maximum(highest, tl.where(negative, s, float("-inf")))
        lowest_positive, highest_negative = tl.min(lowest, axis=1), tl.max(highest, axis=1)
    if STAGE == "extrema":
        store_part(partials, 0, part, parts, c, rows, inside, lowest_positive)
        store_part(partials, 1, part, parts, c, rows, inside, highest_negative)
    else:
        # The ends of the sets have the largest exponents, mined or not: an extreme pair stays if any does.
        max_positive = tl.zeros((BLOCK_R,), dtype)
        max_negative = tl.zeros((BLOCK_R,), dtype)
        if ROW_MAX:
            max_positive = tl.maximum(max_positive, alpha * (base - lowest_positive))
            max_negative = tl.maximum(max_negative, beta * (highest_negative - base))

        sum_positive = tl.zeros((BLOCK_R, BLOCK_M), dtype)
        sum_negative = tl.zeros((BLOCK_R, BLOCK_M), dtype)
        weight_positive = tl.zeros((BLOCK_R, BLOCK_M), dtype)
        weight_negative = tl.zeros((BLOCK_R, BLOCK_M), dtype)
        count_positive = tl.zeros((BLOCK_R, BLOCK_M), tl.int32)
        count_negative = tl.zeros((BLOCK_R, BLOCK_M), tl.int32)
        least = tl.full((BLOCK_R, BLOCK_M), float("inf"), dtype)
        most = tl.full((BLOCK_R, BLOCK_M), float("-inf"), dtype)
        if STAGE != "gradients":
            for start in range(begin, end, BLOCK_M):
                columns = start + tl.arange(0, BLOCK_M)
                s, positive, negative = pair_tile(
                    S, sets, of_rows, columns, m, end, ITSELF, LABELS, IDS, KEEPS_POSITIVES
                )
                if hardest_positive is not None and not (MINING or ROW_MAX):
                    least, most = add_hardest(s, positive, negative, least, most)
                if MINING:
                    positive, negative = informative(s, positive, negative, lowest_positive, highest_negative, epsilon)
                term = pair_terms(s, positive, negative, alpha, beta, base, max_positive, max_negative)
                sum_positive += tl.where(positive, term, 0.0)
                sum_negative += tl.where(negative, term, 0.0)
                if candidate_weights is not None:
                    w = tl.load(candidate_weights + columns, mask=columns < end, other=0.0)[None, :]
                    weight_positive += tl.where(positive, w, 0.0)
                    weight_negative += tl.where(negative, w, 0.0)
                    count_positive += positive.to(tl.int32)
                    count_negative += negative.to(tl.int32)
        if STAGE == "gradients":
            total_positive = tl.sum(load_parts(partials, 2, parts, c, rows, inside, 0.0, BLOCK_P), axis=1)
            total_negative = tl.sum(load_parts(partials, 3, parts, c, rows, inside, 0.0, BLOCK_P), axis=1)
        else:
            total_positive, total_negative = tl.sum(sum_positive, axis=1), tl.sum(sum_negative, axis=1)
        if STAGE != "gradients" and hardest_positive is not None and not (MINING or ROW_MAX):
            lowest_positive, highest_negative = tl.min(least, axis=1), tl.max(most, axis=1)
            if STAGE == "sums":
                store_part(partials, 0, part, parts, c, rows, inside, lowest_positive)
                store_part(partials, 1, part, parts, c, rows, inside, highest_negative)
        mean_positive = tl.full((BLOCK_R,), 1.0, dtype)
        mean_negative = tl.full((BLOCK_R,), 1.0, dtype)
        if STAGE == "sums":
            store_part(partials, 2, part, parts, c, rows, inside, total_positive)
            store_part(partials, 3, part, parts, c, rows, inside, total_negative)
            if candidate_weights is not None:
                store_part(partials, 4, part, parts, c, rows, inside, tl.sum(weight_positive, axis=1))
                store_part(partials, 5, part, parts, c, rows, inside, tl.sum(weight_negative, axis=1))
                store_part(partials, 6, part, parts, c, rows, inside, tl.sum(count_positive, axis=1))
                store_part(partials, 7, part, parts, c, rows, inside, tl.sum(count_negative, axis=1))
        elif candidate_weights is not None:
            if STAGE == "gradients":
                weighed_positive = tl.sum(load_parts(partials, 4, parts, c, rows, inside, 0.0, BLOCK_P), axis=1)
                weighed_negative = tl.sum(load_parts(partials, 5, parts, c, rows, inside, 0.0, BLOCK_P), axis=1)
                number_positive = tl.sum(load_parts(partials, 6, parts, c, rows, inside, 0.0, BLOCK_P), axis=1)
                number_negative = tl.sum(load_parts(partials, 7, parts, c, rows, inside, 0.0, BLOCK_P), axis=1)
            else:
                weighed_positive, weighed_negative = tl.sum(weight_positive, axis=1), tl.sum(weight_negative, axis=1)
                number_positive = tl.sum(count_positive, axis=1).to(dtype)
                number_negative = tl.sum(count_negative, axis=1).to(dtype)
            mean_positive = weighed_positive / tl.maximum(number_positive, 1.0)
            mean_negative = weighed_negative / tl.maximum(number_negative, 1.0)
        if STAGE != "sums":
            first_slice = rows + part.to(tl.int64) * c < c  # the first slice alone stores
            tl.store(
                lse_positive + places, mean_positive * log_one_plus_sum(max_positive, total_positive), mask=first_slice
            )
            tl.store(
                lse_negative + places, mean_negative * log_one_plus_sum(max_negative, total_negative), mask=first_slice
            )
            if hardest_positive is not None:
                tl.store(hardest_positive + places, lowest_positive, mask=first_slice)
                tl.store(hardest_negative + places, highest_negative, mask=first_slice)
            if upstream_positive is not None:
                factor_positive = tl.load(upstream_positive + places * upstream_positive_stride, mask=inside, other=0.0)
                factor_negative = tl.load(upstream_negative + places * upstream_negative_stride, mask=inside, other=0.0)
                factor_positive *= -alpha * mean_positive / one_plus_sum(max_positive, total_positive)
                factor_negative *= beta * mean_negative / one_plus_sum(max_negative, total_negative)
                for start in range(begin, end, BLOCK_M):
                    columns = start + tl.arange(0, BLOCK_M)
                    s, positive, negative = pair_tile(
                        S, sets, of_rows, columns, m, end, ITSELF, LABELS, IDS, KEEPS_POSITIVES
                    )
                    if MINING:
                        positive, negative = informative(
                            s, positive, negative, lowest_positive, highest_negative, epsilon
                        )
                    term = pair_terms(s, positive, negative, alpha, beta, base, max_positive, max_negative)
                    slope = tl.where(positive, factor_positive[:, None] * term, 0.0)
                    slope = tl.where(negative, factor_negative[:, None] * term, slope)
                    slope = of_cosines(slope, candidate_inverse_norm, columns, end)
                    mask = inside[:, None] & (columns < end)[None, :]
                    tl.store(dS + rows[:, None] * m + columns[None, :], slope, mask=mask)
