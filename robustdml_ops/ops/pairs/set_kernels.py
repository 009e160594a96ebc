# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton: a tile of cosines, which of its pairs are positive and negative, and distances of rows that almost agree."""

import triton
import triton.language as tl

from robustdml_ops.engine.labels import ABSENT as ABSENT_LABEL

# As in the other backends.
ABSENT = tl.constexpr(ABSENT_LABEL)


@triton.jit
def label_of(
    labels,  # (n, LABELS) int64, in
    rows,  # (BLOCK,) int64, in
    inside,  # (BLOCK,) bool, in
    LABELS: tl.constexpr,  # labels of a sample
):
    """The label of each row, (BLOCK,); of several the largest. ABSENT, the least int64: the row has none."""
    if LABELS == 1:
        label = tl.load(labels + rows, mask=inside, other=ABSENT)
    else:
        first = labels + rows.to(tl.int64) * LABELS
        label = tl.load(first, mask=inside, other=ABSENT)
        for k in range(1, LABELS):
            label = tl.maximum(label, tl.load(first + k, mask=inside, other=ABSENT))
    return label


@triton.jit
def of_cosines(
    values,  # (BLOCK_R, BLOCK_M) compute dtype, in: products with candidates, or dL/d(cosines)
    candidate_inverse_norm,  # (m,) compute dtype, in; None: 1
    columns,  # (BLOCK_M,) int32, in
    end,  # candidates that are looked at, in
):
    """Cosines, or dL/d(products), where candidates are multiplied as they are."""
    if candidate_inverse_norm is not None:
        values *= tl.load(candidate_inverse_norm + columns, mask=columns < end, other=0.0)[None, :]
    return values


@triton.jit
def pair_tile(
    S,  # (c, m) compute dtype, in: cosines, or products of unit anchors with candidates as they are
    sets,  # in: labels, candidate_labels, ids, candidate_ids and candidate_inverse_norm, as pair_lse has them
    of_rows,  # in: label_of, rows (int64), inside (bool), and places, which candidate each is (int64), (BLOCK_R,) each
    columns,  # (BLOCK_M,) int32, in
    m,  # candidates, in
    end,  # candidates that are looked at, in
    ITSELF: tl.constexpr,  # whether candidate i is anchor i
    LABELS: tl.constexpr,  # labels of a sample
    IDS: tl.constexpr,  # ids of a sample
    KEEPS_POSITIVES: tl.constexpr,  # whether ids are of negatives alone
):
    """Cosines, and whether they are of positives and of negatives, (BLOCK_R, BLOCK_M) each.

    A pair that shares an id in the same place is in no set; a negative number is no id.
    """
    labels, candidate_labels, ids, candidate_ids, candidate_inverse_norm = sets
    label, rows, inside, places = of_rows
    known = columns < end
    mask = inside[:, None] & known[None, :]
    s = tl.load(S + rows[:, None] * m + columns[None, :], mask=mask, other=0.0)
    s = of_cosines(s, candidate_inverse_norm, columns, end)
    other = label_of(candidate_labels, columns, known, LABELS)
    present = (label != ABSENT)[:, None] & (other != ABSENT)[None, :]
    if ITSELF:
        present = present & (places[:, None] != columns[None, :])
    if LABELS == 1:
        same = label[:, None] == other[None, :]
    else:
        same = present & (label == ABSENT)[:, None]  # none yet
        for k in range(LABELS):
            mine = tl.load(labels + places.to(tl.int64) * LABELS + k, mask=inside, other=ABSENT)
            for j in range(LABELS):
                its = tl.load(candidate_labels + columns.to(tl.int64) * LABELS + j, mask=known, other=ABSENT)
                same = same | ((mine[:, None] == its[None, :]) & (mine != ABSENT)[:, None])
    if ids is not None:
        for k in tl.static_range(IDS):
            my_id = tl.load(ids + places.to(tl.int64) * IDS + k, mask=inside, other=-1)
            its_id = tl.load(candidate_ids + columns.to(tl.int64) * IDS + k, mask=known, other=-1)
            apart = (my_id[:, None] != its_id[None, :]) | (my_id < 0)[:, None]
            if KEEPS_POSITIVES:
                apart = apart | same
            present = present & apart
    return s, present & same, present & (same == 0)


@triton.jit
def add_hardest(
    s,  # (BLOCK_R, BLOCK_M) compute dtype, in: cosines
    positive,  # (BLOCK_R, BLOCK_M) bool, in
    negative,  # (BLOCK_R, BLOCK_M) bool, in
    least,  # (BLOCK_R, BLOCK_M) compute dtype, in: of positives so far
    most,  # (BLOCK_R, BLOCK_M) compute dtype, in: of negatives so far
):
    """``least`` and ``most`` after a tile."""
    least = tl.minimum(least, tl.where(positive, s, float("inf")))
    return least, tl.maximum(most, tl.where(negative, s, float("-inf")))


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
