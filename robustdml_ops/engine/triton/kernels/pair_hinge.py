# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The hinges of a chunk of anchors, their counts, and their gradient in place of the cosines."""

import triton
import triton.language as tl

from robustdml_ops.engine.triton.kernels.candidates import in_type
from robustdml_ops.engine.triton.kernels.pair_sets import pair_sets


@triton.jit(do_not_specialize=["c", "first"])
def pair_hinge(
    S,  # (c, m) compute dtype, contiguous, in: cosines; out: dL/dS where upstream is given
    labels,  # (c,) int64, in
    candidate_labels,  # (m,) int64, in
    upstream_positive,  # (c,) or () compute dtype, in: dL/dpositive; None: no gradients wanted
    upstream_negative,  # (c,) or () compute dtype, in
    sums_positive,  # (c,) compute dtype, out
    sums_negative,  # (c,) compute dtype, out
    counts_positive,  # (c,) int64, out: terms above 0
    counts_negative,  # (c,) int64, out
    c,  # anchors of the chunk, in
    m,  # candidates, in
    first,  # anchor of the first row, in
    upstream_positive_stride,  # in elements, in; 0: one value for all anchors
    upstream_negative_stride,  # in elements, in
    positive_margin: tl.float64,  # of t, in
    negative_margin: tl.float64,  # of t, in
    positive_offset: tl.float64,  # in
    negative_offset: tl.float64,  # in
    ITSELF: tl.constexpr,  # whether candidate i is anchor i
    EUCLIDEAN: tl.constexpr,  # whether t is minus the distance of unit vectors, or else the cosine
    BLOCK_R: tl.constexpr,  # anchors a program
    BLOCK_M: tl.constexpr,  # candidates a step
):
    """Two sums and counts per row of S, and S ← dL/dS. Nothing is added across programs: the same bits every time."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = rows < c
    anchors = first + rows
    rows = rows.to(tl.int64)
    label = tl.load(labels + rows, mask=inside, other=-1)
    dtype: tl.constexpr = S.dtype.element_ty
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
    for start in range(0, m, BLOCK_M):
        columns = start + tl.arange(0, BLOCK_M)
        mask = inside[:, None] & (columns < m)[None, :]
        s = tl.load(S + rows[:, None] * m + columns[None, :], mask=mask, other=0.0)
        positive, negative = pair_sets(label, candidate_labels, anchors, columns, m, ITSELF)
        t = s
        slope = tl.full(s.shape, 1.0, dtype)
        if EUCLIDEAN:
            square = 2.0 - 2.0 * s
            distance = tl.sqrt(tl.where(square < 0.0, 0.0, square))
            t = -distance
            # dt/ds: equal vectors have none.
            slope = tl.where(distance == 0.0, 0.0, 1.0 / tl.where(distance == 0.0, 1.0, distance))
        # Asked so that a NaN stays: it is to reach the result.
        positive = positive & ((t >= positive_margin) == 0)
        negative = negative & ((t <= negative_margin) == 0)
        sum_positive += tl.where(positive, positive_top - t, 0.0)
        sum_negative += tl.where(negative, t - negative_bottom, 0.0)
        count_positive += positive.to(tl.int32)
        count_negative += negative.to(tl.int32)
        if upstream_positive is not None:
            dS = tl.where(positive, factor_positive[:, None] * slope, 0.0)
            dS = tl.where(negative, factor_negative[:, None] * slope, dS)
            tl.store(S + rows[:, None] * m + columns[None, :], dS, mask=mask)
    tl.store(sums_positive + rows, tl.sum(sum_positive, axis=1), mask=inside)
    tl.store(sums_negative + rows, tl.sum(sum_negative, axis=1), mask=inside)
    tl.store(counts_positive + rows, tl.sum(count_positive, axis=1).to(tl.int64), mask=inside)
    tl.store(counts_negative + rows, tl.sum(count_negative, axis=1).to(tl.int64), mask=inside)
