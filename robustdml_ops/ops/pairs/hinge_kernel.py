# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The hinges of pairs in Triton, with the distances of near rows."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type
from robustdml_ops.ops.pairs.kernels import ABSENT, pair_tile

# Near pairs that a tile makes one after the other; of more, as in a collapsed batch, all of its pairs side by side.
FEW = tl.constexpr(32)


@triton.jit
def near_distances(
    p,  # (n,) addresses of rows, any floating type, in
    q,  # (n,) addresses of rows that almost agree with those of p, any floating type, in
    D,  # columns, in
    n: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Distances (n,) of the directions of rows that almost agree, float64: see csrc/math/unit_distance.h."""
    p_largest = tl.zeros((n,), tl.float64)
    q_largest = tl.zeros((n,), tl.float64)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)[None, :]
        u = tl.load(p[:, None] + d, mask=d < D, other=0.0).to(tl.float64)
        v = tl.load(q[:, None] + d, mask=d < D, other=0.0).to(tl.float64)
        p_largest = tl.maximum(p_largest, tl.max(tl.abs(u), axis=1))
        q_largest = tl.maximum(q_largest, tl.max(tl.abs(v), axis=1))
    p_scale, q_scale = 1.0 / p_largest, 1.0 / q_largest
    difference = tl.zeros((n,), tl.float64)
    radial = tl.zeros((n,), tl.float64)
    square = tl.zeros((n,), tl.float64)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)[None, :]
        u = tl.load(p[:, None] + d, mask=d < D, other=0.0).to(tl.float64) * p_scale[:, None]
        v = tl.load(q[:, None] + d, mask=d < D, other=0.0).to(tl.float64) * q_scale[:, None]
        difference += tl.sum((u - v) * (u - v), axis=1)
        radial += tl.sum((u - v) * (u + v), axis=1)
        square += tl.sum(u * u, axis=1)
    u_norm, v_norm = tl.sqrt(square), tl.sqrt(square - radial)
    radial = radial / (u_norm + v_norm)
    exact = (difference - radial * radial) / (u_norm * v_norm)
    return tl.where(exact > 1e-28, tl.sqrt(tl.maximum(exact, 0.0)), 0.0)


@triton.jit(do_not_specialize=["c", "first", "per_part"])
def pair_hinge(
    S,  # (c, m) compute dtype, contiguous, in: cosines; of no use at the end with EUCLIDEAN
    dS,  # (c, m) compute or operand dtype, contiguous, out: dL/dS where upstream is given; may be S
    labels,  # (c,) int64, in
    candidate_labels,  # (m,) int64, in
    upstream_positive,  # (c,) or () compute dtype, in: dL/dpositive; None: no gradients wanted
    upstream_negative,  # (c,) or () compute dtype, in
    sums_positive,  # (parts, c) compute dtype, out
    sums_negative,  # (parts, c) compute dtype, out
    counts_positive,  # (parts, c) int64, out: terms above 0
    counts_negative,  # (parts, c) int64, out
    anchors,  # (n, D) any floating type, contiguous, in; read with EUCLIDEAN alone
    candidates,  # (m, D) any floating type, contiguous, in; likewise
    c,  # anchors of the chunk, in
    m,  # candidates, in
    D,  # columns of the rows, in
    first,  # anchor of the first row, in
    per_part,  # candidates of a part, in
    upstream_positive_stride,  # in elements, in; 0: one value for all anchors
    upstream_negative_stride,  # in elements, in
    positive_margin: tl.float64,  # of t, in
    negative_margin: tl.float64,  # of t, in
    positive_offset: tl.float64,  # in
    negative_offset: tl.float64,  # in
    near: tl.float64,  # in: below this a distance is made of the rows
    resolution: tl.float64,  # in: up to this a distance has no gradient
    ITSELF: tl.constexpr,  # whether candidate i is anchor i
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
    label = tl.load(labels + rows, mask=inside, other=ABSENT)
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
        factor_positive = -tl.load(upstream_positive + rows * upstream_positive_stride, mask=inside, other=0.0)
        factor_negative = tl.load(upstream_negative + rows * upstream_negative_stride, mask=inside, other=0.0)

    # Tiles, reduced once at the end: a reduction in each step would cost more than the step.
    sum_positive = tl.zeros((BLOCK_R, BLOCK_M), dtype)
    sum_negative = tl.zeros((BLOCK_R, BLOCK_M), dtype)
    count_positive = tl.zeros((BLOCK_R, BLOCK_M), tl.int32)
    count_negative = tl.zeros((BLOCK_R, BLOCK_M), tl.int32)
    for start in range(begin, end, BLOCK_M):
        columns = start + tl.arange(0, BLOCK_M)
        mask = inside[:, None] & (columns < end)[None, :]
        s, positive, negative = pair_tile(S, candidate_labels, label, rows, inside, places, columns, m, end, ITSELF)
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
            tl.store(dS + rows[:, None] * m + columns[None, :], gradient, mask=mask)
    place = part.to(tl.int64) * c + rows
    tl.store(sums_positive + place, tl.sum(sum_positive, axis=1), mask=inside)
    tl.store(sums_negative + place, tl.sum(sum_negative, axis=1), mask=inside)
    tl.store(counts_positive + place, tl.sum(count_positive, axis=1).to(tl.int64), mask=inside)
    tl.store(counts_negative + place, tl.sum(count_negative, axis=1).to(tl.int64), mask=inside)
