# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Otsu's cut of a row that one program sorts; ``csrc/math/otsu.h`` explains the scale and the sums."""

import triton
import triton.language as tl


@triton.jit
def power_of_two(
    k,  # int64, in: |k| < 1023
):
    """2^k in float64."""
    return ((k + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def exponent_of(
    x,  # float64, in: normal and positive
):
    """floor(log₂ x)."""
    return (x.to(tl.int64, bitcast=True) >> 52) - 1023


@triton.jit
def mean_of(
    total,  # int64, in: sum of y in steps
    count,  # int64, in
    first,  # float64, in: the scale, as a product of two
    second,  # float64, in
    half_origin,  # float64, in
):
    """The mean of ``count`` values in float64."""
    return (total.to(tl.float64) / count.to(tl.float64) / first / second + half_origin) * 2.0


@triton.jit
def otsu(
    values,  # (rows, n) float64 or float32, in; NaN and infinities are left out
    threshold,  # (rows,) as values, out
    low_mean,  # (rows,) as values, out
    high_mean,  # (rows,) as values, out
    index,  # (rows,) int64, out
    excluded,  # (rows,) int64, out
    found,  # (rows,) bool, out
    n,  # length of a row, in
    min_group,  # least size of a group, in
    BLOCK: tl.constexpr,  # a power of two, at least n
):
    """Best cut of one row."""
    r = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    value = tl.load(values + r * n + places, mask=places < n, other=float("inf"))
    is_finite = tl.abs(value) < float("inf")
    count = tl.sum(is_finite.to(tl.int64), 0)
    ordered = tl.sort(tl.where(is_finite, value, float("inf")))
    # Keep the mask instead of the neighbours: registers limit the length of a row.
    i = places + 1
    following = tl.gather(ordered, tl.where(i < BLOCK, i, places), 0)
    allowed = (ordered < following) & (i >= min_group) & (count - i >= min_group)

    inside = places < count
    finite = tl.where(inside, ordered, 0.0).to(tl.float64) * 0.5
    half_origin = tl.sum(tl.where((places == 0) & inside, finite, 0.0), 0)
    half_range = tl.sum(tl.where(places == count - 1, finite, 0.0), 0) - half_origin
    bits = 61 - exponent_of(count.to(tl.float64))
    k = tl.where(bits < 51, bits, 51) - 1 - exponent_of(half_range)
    first, second = power_of_two(k >> 1), power_of_two(k - (k >> 1))
    # Adding 1.5 · 2⁵² rounds to the nearest integer, and leaves it in the lowest bits.
    round_up = tl.full((), 6755399441055744.0, tl.float64)
    y = tl.where(inside, (finite - half_origin) * first * second, 0.0) + round_up
    steps = y.to(tl.int64, bitcast=True) - round_up.to(tl.int64, bitcast=True)
    sums = tl.cumsum(steps, 0)
    total = tl.sum(steps, 0)

    difference = count.to(tl.float64) * sums.to(tl.float64) - i.to(tl.float64) * total.to(tl.float64)
    pairs = tl.where(allowed, i.to(tl.float64) * (count - i).to(tl.float64), 1.0)
    between = tl.where(allowed, difference * difference / pairs, -1.0)
    best = tl.max(between, 0)
    at = tl.min(tl.where(between == best, places, BLOCK), 0)
    is_found = best >= 0

    low = tl.max(tl.where(places <= at, ordered, float("-inf")), 0)
    high = tl.min(tl.where(places > at, ordered, float("inf")), 0)
    middle = low * 0.5 + high * 0.5
    middle = tl.where((middle >= low) & (middle < high), middle, low)
    low_sum = tl.sum(tl.where(places == at, sums, 0), 0)
    low_count = tl.where(is_found, (at + 1).to(tl.int64), count)
    low_sum = tl.where(is_found, low_sum, total)
    high_count = tl.where(is_found, count - low_count, low_count)
    high_sum = tl.where(is_found, total - low_sum, low_sum)
    # No value at all: a mean of 0.
    low_value = mean_of(low_sum, tl.where(low_count > 0, low_count, 1), first, second, half_origin)
    high_value = mean_of(high_sum, tl.where(high_count > 0, high_count, 1), first, second, half_origin)
    tl.store(threshold + r, tl.where(is_found, middle, float("inf")))
    tl.store(low_mean + r, low_value)
    tl.store(high_mean + r, high_value)
    tl.store(index + r, low_count)
    tl.store(excluded + r, n - count)
    tl.store(found + r, is_found)
