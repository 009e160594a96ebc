# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The hinges of pairs in Triton, with the distances of near rows."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type
from robustdml_ops.ops.pairs.kernels import ABSENT, pair_sets


@triton.jit
def near_distance(
    p,  # address of a row, any floating type, in
    q,  # address of a row, any floating type, in
    D,  # columns, in
    BLOCK_D: tl.constexpr,
):
    """Distance of the directions of two rows that almost agree, float64: see csrc/math/unit_distance.h."""
    p_largest = tl.zeros((BLOCK_D,), tl.float64)
    q_largest = tl.zeros((BLOCK_D,), tl.float64)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        p_largest = tl.maximum(p_largest, tl.abs(tl.load(p + d, mask=d < D, other=0.0).to(tl.float64)))
        q_largest = tl.maximum(q_largest, tl.abs(tl.load(q + d, mask=d < D, other=0.0).to(tl.float64)))
    p_scale, q_scale = 1.0 / tl.max(p_largest, axis=0), 1.0 / tl.max(q_largest, axis=0)
    differences = tl.zeros((BLOCK_D,), tl.float64)
    radials = tl.zeros((BLOCK_D,), tl.float64)
    squares = tl.zeros((BLOCK_D,), tl.float64)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        u = tl.load(p + d, mask=d < D, other=0.0).to(tl.float64) * p_scale
        v = tl.load(q + d, mask=d < D, other=0.0).to(tl.float64) * q_scale
        differences += (u - v) * (u - v)
        radials += (u - v) * (u + v)
        squares += u * u
    radial, square = tl.sum(radials, axis=0), tl.sum(squares, axis=0)
    u_norm, v_norm = tl.sqrt(square), tl.sqrt(square - radial)
    radial = radial / (u_norm + v_norm)
    exact = (tl.sum(differences, axis=0) - radial * radial) / (u_norm * v_norm)
    return tl.where(exact > 1e-28, tl.sqrt(tl.maximum(exact, 0.0)), 0.0)


@triton.jit(do_not_specialize=["c", "first", "per_part"])
def pair_hinge(
    S,  # (c, m) compute dtype, contiguous, in: cosines
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
        s = tl.load(S + rows[:, None] * m + columns[None, :], mask=mask, other=0.0)
        positive, negative = pair_sets(label, candidate_labels, places, columns, end, ITSELF)
        t = s
        slope = tl.full(s.shape, 1.0, dtype)
        if EUCLIDEAN:
            square = 2.0 - 2.0 * s
            distance = tl.sqrt(tl.where(square < 0.0, 0.0, square))
            # Near pairs one after the other: they are few, and a tile of them would halve what a processor runs.
            close = (positive | negative) & (distance < near)
            place_in_tile = tl.arange(0, BLOCK_R)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
            waiting = tl.where(close, place_in_tile, BLOCK_R * BLOCK_M)
            for _ in range(0, tl.sum(close.to(tl.int32))):
                pair = tl.min(waiting)
                anchor = (first + tl.program_id(0) * BLOCK_R + pair // BLOCK_M).to(tl.int64)
                candidate = (start + pair % BLOCK_M).to(tl.int64)
                exact = near_distance(anchors + anchor * D, candidates + candidate * D, D, 128)
                distance = tl.where(place_in_tile == pair, exact.to(dtype), distance)
                waiting = tl.where(place_in_tile == pair, BLOCK_R * BLOCK_M, waiting)
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
