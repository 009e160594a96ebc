# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Scalar functions that the kernels of several primitives share."""

import triton
import triton.language as tl


@triton.jit
def in_type(
    number,  # float64, in
    dtype: tl.constexpr,  # the type to compute in
):
    """Turn the number into ``dtype``: a float64 argument would make everything it meets float64."""
    return tl.full((), number, dtype)


@triton.jit
def log_one_plus(
    x,  # compute dtype, in: at least 0
):
    """log(1 + x) by Kahan's quotient, in which the rounding error of 1 + x cancels."""
    one_plus = 1.0 + x
    quotient = tl.log(one_plus) * (x / tl.where(one_plus == 1.0, 1.0, one_plus - 1.0))
    return tl.where(one_plus == 1.0, x, quotient)


@triton.jit
def log_one_plus_sum(
    shift,  # (BLOCK_C,) compute dtype, in: at least 0
    total,  # (BLOCK_C,) compute dtype, in: Σ weight · e^(exponent − shift)
):
    """log(1 + Σ weight · e^exponent)."""
    # Where nothing was shifted a sum far below 1 must not be rounded away.
    # A total of 0 is that of an empty set, whose shift may be that of a set before mining: e^−shift may be 0 as well.
    empty = total == 0.0
    shifted = shift + tl.log(tl.where(empty, 1.0, tl.exp(-shift) + total))
    return tl.where(empty | (shift == 0.0), log_one_plus(total), shifted)


@triton.jit
def one_plus_sum(
    shift,  # (BLOCK_C,) compute dtype, in: at least 0
    total,  # (BLOCK_C,) compute dtype, in: Σ weight · e^(exponent − shift)
):
    """e^−shift (1 + Σ weight · e^exponent), the divisor of shares; 1 for an empty set."""
    return tl.where(total == 0.0, 1.0, tl.exp(-shift) + total)


@triton.jit
def largest(
    like,  # compute dtype, in
):
    """The largest finite number of the type."""
    DOUBLE: tl.constexpr = like.dtype == tl.float64
    return tl.full((), 1.7976931348623157e308 if DOUBLE else 3.4028234663852886e38, like.dtype)


@triton.jit
def divide(
    x,  # compute dtype, in
    y,  # compute dtype, in
):
    """X / y rounded to nearest: the operator's float32 quotient is off by up to 2 ulp."""
    if y.dtype == tl.float32:
        return tl.div_rn(x, y)
    return x / y


@triton.jit
def log_normal(
    u,  # compute dtype, in: normal and positive
    correction,  # compute dtype, in
    offset,  # compute dtype, in: may take most of the logarithm away
):
    """Sum of offset, log(u) and correction, within an ulp: the device's own logarithm is exact to 2⁻²² absolutely.

    u = 2^e m with √½ ≤ m < √2, and log(m) = 2 atanh((m − 1)/(m + 1)) by its series.
    """
    if u.dtype == tl.float64:
        word = u.to(tl.int64, bitcast=True)
        e = ((word + (0x3FF0000000000000 - 0x3FE6A09E667F3BCD)) >> 52) - 1023
        m = (word - (e << 52)).to(tl.float64, bitcast=True)
        high = tl.full((), 6.93147180369123816490e-01, tl.float64)
        low = tl.full((), 1.90821492927058770002e-10, tl.float64)
    else:
        word = u.to(tl.int32, bitcast=True)
        e = ((word + (0x3F800000 - 0x3F3504F3)) >> 23) - 127
        m = (word - (e << 23)).to(tl.float32, bitcast=True)
        high = tl.full((), 0.693359375, tl.float32)
        low = tl.full((), -2.12194440054690583e-4, tl.float32)
    exponent = e.to(u.dtype)
    TERMS: tl.constexpr = 10 if u.dtype == tl.float64 else 4
    f = m - 1.0
    s = divide(f, 2.0 + f)
    square = s * s
    tail = tl.zeros_like(s)
    for i in tl.static_range(TERMS):
        tail = square * (tail + tl.full((), 2 / (2 * (TERMS - i) + 1), u.dtype))
    return (offset + exponent * high) + (f - (s * (f - tail) - (exponent * low + correction)))


@triton.jit
def softplus(
    t,  # compute dtype, in
):
    """log(1 + e^t)."""
    return tl.maximum(t, 0.0) + log_one_plus(tl.exp(-tl.abs(t)))


@triton.jit
def sigmoid(
    t,  # compute dtype, in
):
    """1 / (1 + e^−t)."""
    e = tl.exp(-tl.abs(t))
    return tl.where(t < 0.0, e, 1.0) / (1.0 + e)
