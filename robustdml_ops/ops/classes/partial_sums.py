# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Sums of exponentials over parts of the classes in Triton.

Every thread keeps a sum and a shift of its own for each place of its tile; they meet once, at the end, so that a step
over the classes waits for no other thread.
"""

import triton
import triton.language as tl

# Where a shift starts: finite, so that the logit −∞ of a masked class never meets a shift of −∞.
LOWEST = tl.constexpr(-3.4028234663852886e38)


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
