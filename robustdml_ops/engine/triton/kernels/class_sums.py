# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What the kernels of the class log-sum-exp share: pooling over sub-centres, and running sums by sample.

Every thread keeps a sum and a shift of its own for each place of its tile; they meet once, at the end, so that a step
over the classes waits for no other thread.
"""

import triton
import triton.language as tl

# Where a shift starts: finite, so that the logit −∞ of a masked class never meets a shift of −∞.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def add_center(
    value,  # similarities with centre h, in
    h,  # number of the centre, in
    pooled,  # max: the largest so far; softmax: Σ weight · s so far, in
    choice,  # max: its number; softmax: the largest s so far, in
    total,  # softmax: Σ weight so far, in
    gamma,  # compute dtype, in
    POOLING: tl.constexpr,
):
    """``pooled``, ``choice`` and ``total`` after one more centre; weight = exp((s − largest) / gamma)."""
    if POOLING == "max":
        # The first of equal ones; and a NaN, once met, stays.
        keep = (value <= pooled) | (pooled != pooled)
        choice = tl.where(keep, choice, h)
        pooled = tl.where(keep, pooled, value)
    else:
        above = value - choice
        e = tl.exp(-tl.abs(above) / gamma)
        larger = above > 0.0
        total = tl.where(larger, total * e + 1.0, total + e)
        pooled = tl.where(larger, pooled * e + value, pooled + e * value)
        choice = tl.where(larger, value, choice)
    return pooled, choice, total


@triton.jit
def first_center(
    value,  # similarities with centre 0, in
    POOLING: tl.constexpr,
):
    """What :func:`add_center` begins with."""
    choice = value
    if POOLING == "max":
        choice = tl.zeros_like(value)
    return value, choice, tl.full(value.shape, 1.0, value.dtype)


@triton.jit
def load_pooled(
    pointers,  # addresses of the similarities with centre 0, in
    mask,  # bool, in: which exist
    center_stride,  # from one centre to the next in elements, in
    H,  # centres of a class, in
    gamma,  # compute dtype, in
    POOLING: tl.constexpr,  # "none", "max" or "softmax"
):
    """Similarities with whole classes, and ``choice`` and ``total`` as :func:`add_center` has them."""
    pooled, choice, total = first_center(tl.load(pointers, mask=mask, other=0.0), POOLING)
    if POOLING != "none":
        for h in range(1, H):
            value = tl.load(pointers + h * center_stride, mask=mask, other=0.0)
            pooled, choice, total = add_center(value, h, pooled, choice, total, gamma, POOLING)
    if POOLING == "softmax":
        pooled = pooled / total
    return pooled, choice, total


@triton.jit
def class_lines(
    scale,  # (C,) or () compute dtype, in
    bias,  # (C,) compute dtype, in; None: none
    rows,  # int64, in: classes
    inside,  # bool, in: which exist
    scale_stride,  # in elements, in; 0: one value for all classes
):
    """Slope and offset of a class's logit as a function of its similarity; −∞ for classes that don't exist."""
    slope = tl.load(scale + rows * scale_stride, mask=inside, other=0.0)
    offset = tl.zeros_like(slope)
    if bias is not None:
        offset = tl.load(bias + rows, mask=inside, other=0.0)
    return slope, tl.where(inside, offset, float("-inf"))


@triton.jit
def add_logits(
    logit,  # (BLOCK_C, BLOCK_B) compute dtype, in; −∞ where there is none
    shift,  # (BLOCK_C, BLOCK_B) compute dtype, in: largest logit so far of each place
    total,  # (BLOCK_C, BLOCK_B) compute dtype, in: Σ exp(logit − shift) so far
):
    """``shift`` and ``total`` after a tile: one exponential scales the new term, or all the terms before it."""
    above = logit - shift
    e = tl.exp(-tl.abs(above))
    larger = above > 0.0
    return tl.where(larger, logit, shift), tl.where(larger, total * e + 1.0, total + e)


@triton.jit
def store_partial(
    partials,  # (parts, 2, B) compute dtype, out
    part,  # int64, in
    columns,  # (BLOCK_B,) int32, in: samples
    B,  # samples in all, in
    shift,  # (BLOCK_C, BLOCK_B) compute dtype, in
    total,  # (BLOCK_C, BLOCK_B) compute dtype, in
):
    """Largest logit and Σ exp(logit − largest) of this part of the classes."""
    largest = tl.max(shift, axis=0)
    summed = tl.sum(total * tl.exp(shift - largest[None, :]), axis=0)
    place = partials + part * 2 * B + columns
    tl.store(place, largest, mask=columns < B)
    tl.store(place + B, summed, mask=columns < B)


@triton.jit(do_not_specialize=["parts"])
def add_partials(
    partials,  # (parts, 2, B) compute dtype, in
    shift,  # (B,) float64, in/out: largest logit so far; −∞ before the first chunk
    total,  # (B,) float64, in/out: Σ exp(logit − shift) so far
    parts,  # in
    B,  # samples, in
    BLOCK_P: tl.constexpr,  # parts a step
    BLOCK_B: tl.constexpr,  # samples a program
):
    """Add all parts to the running sums, in an order that never changes: the same bits every time."""
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    before = tl.load(shift + columns, mask=columns < B, other=0.0)
    summed = tl.load(total + columns, mask=columns < B, other=0.0)
    for first in range(0, parts, BLOCK_P):
        part = first + tl.arange(0, BLOCK_P)
        mask = (part < parts)[:, None] & (columns < B)[None, :]
        place = partials + part.to(tl.int64)[:, None] * 2 * B + columns[None, :]
        part_shift = tl.load(place, mask=mask, other=LOWEST)
        part_total = tl.load(place + B, mask=mask, other=0.0)
        largest = tl.maximum(before, tl.max(part_shift, axis=0).to(tl.float64))
        terms = part_total * tl.exp(part_shift - largest.to(part_shift.dtype)[None, :])
        summed = summed * tl.exp(before - largest) + tl.sum(terms.to(tl.float64), axis=0)
        before = largest
    tl.store(shift + columns, before, mask=columns < B)
    tl.store(total + columns, summed, mask=columns < B)
