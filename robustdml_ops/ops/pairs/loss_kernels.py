# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The hinges of pairs in Triton, and their softmax and logistic losses."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type, sigmoid, softplus
from robustdml_ops.ops.pairs.set_kernels import ABSENT, add_hardest, label_of, near_distances, of_cosines, pair_tile

# Near pairs that a tile makes one after the other; of more, as in a collapsed batch, all of its pairs side by side.
FEW = tl.constexpr(32)


@triton.jit(do_not_specialize=["c", "first", "per_part", "n"])
def pair_hinge(
    S,  # (c, m) compute dtype, contiguous, in: as in pair_lse; of no use at the end with EUCLIDEAN
    dS,  # (c, m) compute or operand dtype, contiguous, out: dL/dS where upstream is given; may be S
    labels,  # (n, LABELS) int64, in
    candidate_labels,  # (m, LABELS) int64, in
    ids,  # (n, IDS) int64, in: see pair_tile; None: none
    candidate_ids,  # (m, IDS) int64, in
    candidate_inverse_norm,  # (m,) compute dtype, in: 1 / |candidate|, and dS is by the products; None: S has cosines
    upstream_positive,  # (n,) or () compute dtype, in: dL/dpositive; None: no gradients wanted
    upstream_negative,  # (n,) or () compute dtype, in
    sums_positive,  # (parts, n) compute dtype, out
    sums_negative,  # (parts, n) compute dtype, out
    counts_positive,  # (parts, n) int64, out: terms above 0
    counts_negative,  # (parts, n) int64, out
    anchors,  # (n, D) any floating type, contiguous, in; read with EUCLIDEAN alone
    candidates,  # (m, D) any floating type, contiguous, in; likewise
    hardest_positive,  # (parts, n) compute dtype, out: least cosine over P, ∞ without any; None: not wanted
    hardest_negative,  # (parts, n) compute dtype, out: largest cosine over N, or −∞
    c,  # anchors of the chunk, in
    m,  # candidates, in
    D,  # columns of the rows, in
    first,  # anchor of the first row, in: the vectors (n,) have all of them
    per_part,  # candidates of a part, in
    n,  # anchors in all, in
    upstream_positive_stride,  # in elements, in; 0: one value for all anchors
    upstream_negative_stride,  # in elements, in
    positive_margin: tl.float64,  # of t, in
    negative_margin: tl.float64,  # of t, in
    positive_offset: tl.float64,  # in
    negative_offset: tl.float64,  # in
    near: tl.float64,  # in: below this a distance is made of the rows
    resolution: tl.float64,  # in: up to this a distance has no gradient
    ITSELF: tl.constexpr,  # whether candidate i is anchor i
    LABELS: tl.constexpr,  # labels of a sample
    IDS: tl.constexpr,  # ids of a sample
    KEEPS_POSITIVES: tl.constexpr,  # whether ids are of negatives alone
    EUCLIDEAN: tl.constexpr,  # whether t is minus the distance of unit vectors, or else the cosine
    BLOCK_R: tl.constexpr,  # anchors a program
    BLOCK_M: tl.constexpr,  # candidates a step
):
    """Two sums and counts per row and part of S, and dL/dS. Nothing is added across programs: the same bits."""
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
    # Pairs at a time, columns of their rows, and of those of a pair alone: as many as the registers hold with every
    # Triton from 3.6 on.
    PAIRS: tl.constexpr = BLOCK_R * BLOCK_M // 8
    WIDTH: tl.constexpr = 4 if dtype == tl.float32 else 8
    ALONE: tl.constexpr = 128 if dtype == tl.float32 else 256
    near, resolution = in_type(near, dtype), in_type(resolution, dtype)
    positive_margin, negative_margin = in_type(positive_margin, dtype), in_type(negative_margin, dtype)
    positive_top = positive_margin + in_type(positive_offset, dtype)
    negative_bottom = negative_margin - in_type(negative_offset, dtype)
    if upstream_positive is not None:
        factor_positive = -tl.load(upstream_positive + places * upstream_positive_stride, mask=inside, other=0.0)
        factor_negative = tl.load(upstream_negative + places * upstream_negative_stride, mask=inside, other=0.0)

    # Tiles, reduced once at the end: a reduction in each step would cost more than the step.
    sum_positive = tl.zeros((BLOCK_R, BLOCK_M), dtype)
    sum_negative = tl.zeros((BLOCK_R, BLOCK_M), dtype)
    count_positive = tl.zeros((BLOCK_R, BLOCK_M), tl.int32)
    count_negative = tl.zeros((BLOCK_R, BLOCK_M), tl.int32)
    least = tl.full((BLOCK_R, BLOCK_M), float("inf"), dtype)
    most = tl.full((BLOCK_R, BLOCK_M), float("-inf"), dtype)
    for start in range(begin, end, BLOCK_M):
        columns = start + tl.arange(0, BLOCK_M)
        mask = inside[:, None] & (columns < end)[None, :]
        s, positive, negative = pair_tile(S, sets, of_rows, columns, m, end, ITSELF, LABELS, IDS, KEEPS_POSITIVES)
        if hardest_positive is not None:
            least, most = add_hardest(s, positive, negative, least, most)
        t = s
        slope = tl.full(s.shape, 1.0, dtype)
        if EUCLIDEAN:
            square = 2.0 - 2.0 * s
            distance = tl.sqrt(tl.where(square < 0.0, 0.0, square))
            close = (positive | negative) & (distance < near)
            # Over the whole tile, so threads meet here: each has read its s before any writes to S.
            number = tl.sum(close.to(tl.int32))
            if number > 0:
                # By way of S: a tile of float64 sums would halve what a processor runs.
                first_row = tl.program_id(0) * BLOCK_R
                if number > FEW:
                    for first_pair in range(0, BLOCK_R * BLOCK_M, PAIRS):
                        pairs = first_pair + tl.arange(0, PAIRS)
                        row = tl.minimum(first_row + pairs // BLOCK_M, c - 1).to(tl.int64)
                        column = tl.minimum(start + pairs % BLOCK_M, end - 1).to(tl.int64)
                        exact = near_distances(anchors + (first + row) * D, candidates + column * D, D, PAIRS, WIDTH)
                        tl.store(S + row * m + column, exact.to(dtype))
                else:
                    place_in_tile = tl.arange(0, BLOCK_R)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
                    waiting = tl.where(close, place_in_tile, BLOCK_R * BLOCK_M)
                    for _ in range(0, number):
                        pair = tl.min(waiting) + tl.arange(0, 1)
                        row, column = (first_row + pair // BLOCK_M).to(tl.int64), (start + pair % BLOCK_M).to(tl.int64)
                        exact = near_distances(anchors + (first + row) * D, candidates + column * D, D, 1, ALONE)
                        tl.store(S + row * m + column, exact.to(dtype))
                        waiting = tl.where(place_in_tile == tl.min(waiting), BLOCK_R * BLOCK_M, waiting)
                tl.debug_barrier()
                exact_tile = tl.load(S + rows[:, None] * m + columns[None, :], mask=mask, other=0.0)
                distance = tl.where(close, exact_tile, distance)
            t = -distance
            # dt/ds; <=, so that a NaN stays.
            slope = tl.where(distance <= resolution, 0.0, 1.0 / tl.where(distance <= resolution, 1.0, distance))
        # Negated, so that a NaN stays and reaches the result.
        positive = positive & ((t >= positive_margin) == 0)
        negative = negative & ((t <= negative_margin) == 0)
        sum_positive += tl.where(positive, positive_top - t, 0.0)
        sum_negative += tl.where(negative, t - negative_bottom, 0.0)
        count_positive += positive.to(tl.int32)
        count_negative += negative.to(tl.int32)
        if upstream_positive is not None:
            gradient = tl.where(positive, factor_positive[:, None] * slope, 0.0)
            gradient = tl.where(negative, factor_negative[:, None] * slope, gradient)
            gradient = of_cosines(gradient, candidate_inverse_norm, columns, end)
            tl.store(dS + rows[:, None] * m + columns[None, :], gradient, mask=mask)
    place = part.to(tl.int64) * n + places
    tl.store(sums_positive + place, tl.sum(sum_positive, axis=1), mask=inside)
    tl.store(sums_negative + place, tl.sum(sum_negative, axis=1), mask=inside)
    tl.store(counts_positive + place, tl.sum(count_positive, axis=1).to(tl.int64), mask=inside)
    tl.store(counts_negative + place, tl.sum(count_negative, axis=1).to(tl.int64), mask=inside)
    if hardest_positive is not None:
        tl.store(hardest_positive + place, tl.min(least, axis=1), mask=inside)
        tl.store(hardest_negative + place, tl.max(most, axis=1), mask=inside)


@triton.jit(do_not_specialize=["c", "first"])
def pair_contrast(
    S,  # (c, m) compute dtype, contiguous, in: cosines, or products of unit anchors with candidates as they are
    dS,  # (c, m) compute or operand dtype, contiguous, out: dL/dS where upstream is given; may be S
    labels,  # (n, LABELS) int64, in
    candidate_labels,  # (m, LABELS) int64, in
    ids,  # (n, IDS) int64, in: see pair_tile; None: none
    candidate_ids,  # (m, IDS) int64, in
    candidate_inverse_norm,  # (m,) compute dtype, in: 1 / |candidate|, and dS is by the products; None: S has cosines
    coefficients,  # (2,) compute dtype, in: scale and bias of the logits
    column_lse,  # (m,) compute dtype, in: log-sum-exps of the candidates over all anchors; None: no columns
    column_upstream,  # (m,) compute dtype, in: dL/dcolumn_lse
    upstream_positive,  # (n,) or () compute dtype, in: dL/dloss; None: no gradients wanted
    upstream_negative,  # (n,) or () compute dtype, in: dL/dlse
    losses,  # (n,) compute dtype, out
    lses,  # (n,) compute dtype, out: 0 in forms without
    dscale,  # (n,) compute dtype, out with upstream: Σ s dL/dz
    dbias,  # (n,) compute dtype, out with upstream: Σ dL/dz
    positives,  # (n,) compute dtype, out but for "sigmoid": positives of an anchor; None: not wanted
    has_negatives,  # (n,) compute dtype, out exactly with positives: 1 for an anchor with a negative, else 0
    hardest_positive,  # (n,) compute dtype, out: least cosine over P, ∞ without any; None: not wanted
    hardest_negative,  # (n,) compute dtype, out: largest cosine over N, or −∞
    c,  # anchors of the chunk, in
    m,  # candidates, in
    first,  # anchor of the first row, in: the vectors (n,) have all of them
    upstream_positive_stride,  # in elements, in; 0: one value for all anchors
    upstream_negative_stride,  # in elements, in
    ITSELF: tl.constexpr,  # whether candidate i is anchor i
    LABELS: tl.constexpr,  # labels of a sample
    IDS: tl.constexpr,  # ids of a sample
    KEEPS_POSITIVES: tl.constexpr,  # whether ids are of negatives alone
    FORM: tl.constexpr,  # one of FORMS
    BLOCK_R: tl.constexpr,  # anchors a program
    BLOCK_M: tl.constexpr,  # candidates a step
):
    """A loss and a log-sum-exp per row of S, and dL/dS. A program takes whole rows: the same bits every time."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = rows < c
    places = first + rows
    rows = rows.to(tl.int64)
    label = label_of(labels, places, inside, LABELS)
    sets = (labels, candidate_labels, ids, candidate_ids, candidate_inverse_norm)
    of_rows = (label, rows, inside, places)
    dtype: tl.constexpr = S.dtype.element_ty
    scale, bias = tl.load(coefficients), tl.load(coefficients + 1)
    zeros = tl.zeros((BLOCK_R, BLOCK_M), dtype)

    largest_positive = tl.full((BLOCK_R, BLOCK_M), float("-inf"), dtype)
    largest_negative = tl.full((BLOCK_R, BLOCK_M), float("-inf"), dtype)
    number, of_positives, loss_sum = zeros, zeros, zeros
    least = tl.full((BLOCK_R, BLOCK_M), float("inf"), dtype)
    most = tl.full((BLOCK_R, BLOCK_M), float("-inf"), dtype)
    for start in range(0, m, BLOCK_M):
        columns = start + tl.arange(0, BLOCK_M)
        s, positive, negative = pair_tile(S, sets, of_rows, columns, m, m, ITSELF, LABELS, IDS, KEEPS_POSITIVES)
        z = scale * s + bias
        if hardest_positive is not None:
            least, most = add_hardest(s, positive, negative, least, most)
        if FORM == "sigmoid":
            loss_sum += tl.where(positive, softplus(-z), tl.where(negative, softplus(z), 0.0))
        else:
            largest_positive = tl.maximum(largest_positive, tl.where(positive, z, float("-inf")))
            largest_negative = tl.maximum(largest_negative, tl.where(negative, z, float("-inf")))
            number += tl.where(positive, 1.0, 0.0)
    if hardest_positive is not None:
        tl.store(hardest_positive + places, tl.min(least, axis=1), mask=inside)
        tl.store(hardest_negative + places, tl.max(most, axis=1), mask=inside)
    some = tl.sum(number, axis=1) > 0.0
    count = tl.maximum(tl.sum(number, axis=1), 1.0)
    if FORM != "sigmoid":
        # A row without positives has no loss.
        of_rows = (tl.where(some, label, ABSENT), rows, inside, places)
    end_positive, end_negative = tl.max(largest_positive, axis=1), tl.max(largest_negative, axis=1)
    end = end_negative if FORM == "each" else tl.maximum(end_positive, end_negative)
    if positives is not None:
        tl.store(positives + places, tl.sum(number, axis=1), mask=inside)
        tl.store(has_negatives + places, (end_negative > float("-inf")).to(dtype), mask=inside)
    # Of a row without them, or of NaN alone, there is no largest.
    end = tl.where(end == float("-inf"), 0.0, end)
    end_positive = tl.where(end_positive == float("-inf"), 0.0, end_positive)
    sum_all, sum_positive = zeros, zeros
    if FORM != "sigmoid":
        for start in range(0, m, BLOCK_M):
            columns = start + tl.arange(0, BLOCK_M)
            s, positive, negative = pair_tile(S, sets, of_rows, columns, m, m, ITSELF, LABELS, IDS, KEEPS_POSITIVES)
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
            s, positive, negative = pair_tile(S, sets, of_rows, columns, m, m, ITSELF, LABELS, IDS, KEEPS_POSITIVES)
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
    tl.store(losses + places, loss, mask=inside)
    tl.store(lses + places, tl.where(some & (FORM != "each"), lse, 0.0), mask=inside)
    if upstream_positive is not None:
        upstream = tl.load(upstream_positive + places * upstream_positive_stride, mask=inside, other=0.0)[:, None]
        of_lse = tl.load(upstream_negative + places * upstream_negative_stride, mask=inside, other=0.0)[:, None]
        dscale_sum, dbias_sum = zeros, zeros
        for start in range(0, m, BLOCK_M):
            columns = start + tl.arange(0, BLOCK_M)
            s, positive, negative = pair_tile(S, sets, of_rows, columns, m, m, ITSELF, LABELS, IDS, KEEPS_POSITIVES)
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
            gradient = of_cosines(dz * scale, candidate_inverse_norm, columns, m)
            tl.store(dS + rows[:, None] * m + columns[None, :], gradient, mask=mask)
        tl.store(dscale + places, tl.sum(dscale_sum, axis=1), mask=inside)
        tl.store(dbias + places, tl.sum(dbias_sum, axis=1), mask=inside)
