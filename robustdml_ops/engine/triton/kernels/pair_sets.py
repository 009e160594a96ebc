# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What the kernels on pairs share: the sets of a tile."""

import triton
import triton.language as tl


@triton.jit
def pair_sets(
    label,  # (BLOCK_R,) int64, in: of the anchors; below 0: the anchor has no pairs, or the row does not exist
    candidate_labels,  # (m,) int64, in
    anchors,  # (BLOCK_R,) int64, in: which candidate each anchor is
    columns,  # (BLOCK_M,) int32, in: candidates
    m,  # candidates in all, in
    ITSELF: tl.constexpr,  # whether the anchors are candidates themselves
):
    """Positives and negatives, (BLOCK_R, BLOCK_M) bool each."""
    other = tl.load(candidate_labels + columns, mask=columns < m, other=-1)
    present = (label >= 0)[:, None] & (other >= 0)[None, :]
    if ITSELF:
        present = present & (anchors[:, None] != columns[None, :])
    same = label[:, None] == other[None, :]
    return present & same, present & (same == 0)


@triton.jit
def informative(
    s,  # (BLOCK_R, BLOCK_M) compute dtype, in
    positive,  # (BLOCK_R, BLOCK_M) bool, in
    negative,  # (BLOCK_R, BLOCK_M) bool, in
    lowest_positive,  # (BLOCK_R,) compute dtype, in
    highest_negative,  # (BLOCK_R,) compute dtype, in
    epsilon,  # compute dtype, in
):
    """Mining: what stays of both sets. Asked so that a NaN stays: it is to reach the result."""
    kept_positive = positive & ((s - epsilon >= highest_negative[:, None]) == 0)
    kept_negative = negative & ((s + epsilon <= lowest_positive[:, None]) == 0)
    return kept_positive, kept_negative
