# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Lambert's W and the confidences made of it; ``csrc/math/lambert_w.h`` explains the regions and the steps."""

import math

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import divide, largest, log_normal

BRANCH_SERIES = tl.constexpr(tuple((k + 1) / math.factorial(k + 2) for k in range(17)))


@triton.jit
def branch_point(
    like,  # compute dtype, in
):
    """−1/e rounded to the type, and the remainder."""
    DOUBLE: tl.constexpr = like.dtype == tl.float64
    point = tl.full((), -0.36787944117144233 if DOUBLE else -0.36787945, like.dtype)
    return point, tl.full((), -1.2428753672788363e-17 if DOUBLE else -9.1497552e-09, like.dtype)


@triton.jit
def near_branch(
    x,  # compute dtype, in: from −1/e to −1/4
):
    """W by Halley's steps for W + 1 from the series of √(2(e x + 1))."""
    DOUBLE: tl.constexpr = x.dtype == tl.float64
    TERMS: tl.constexpr = 17 if DOUBLE else 10
    point, rest = branch_point(x)
    q = (x - point) + rest
    eq = tl.where(q > 0, q * tl.full((), 2.7182818284590452354, x.dtype), 0.0)
    p = tl.sqrt(2.0 * eq) if DOUBLE else tl.sqrt_rn(2.0 * eq)
    d = p * tl.full((), 769 / 17280, x.dtype)
    d = p * (tl.full((), 43 / 540, x.dtype) - d)
    d = p * (tl.full((), 11 / 72, x.dtype) - d)
    d = p * (tl.full((), 1 / 3, x.dtype) - d)
    d = p * (1.0 - d)
    w = d - 1.0
    for _ in tl.static_range(2 if DOUBLE else 1):
        series = tl.zeros_like(d)
        for i in tl.static_range(TERMS):
            series = series * d + tl.full((), BRANCH_SERIES[TERMS - 1 - i], x.dtype)
        value = d * d * series
        f = value - eq
        divisor = 2.0 * d * d * divide(1.0 - value, 1.0 - d) - f * (d + 1.0)
        step = tl.where(divisor > 0, divide(2.0 * f * d, tl.where(divisor > 0, divisor, 1.0)), 0.0)
        w = (d - 1.0) - step
        d -= step
    return w


@triton.jit
def beyond_branch(
    x,  # compute dtype, in: finite, at least −1/4, not tiny
):
    """W by Fritsch's steps from Winitzki's approximation."""
    zero = tl.zeros_like(x)
    l = log_normal(1.0 + x, zero, zero)  # noqa: E741
    w = l * (1.0 - divide(log_normal(1.0 + l, zero, zero), 2.0 + l))
    for _ in tl.static_range(2 if x.dtype == tl.float64 else 1):
        z = log_normal(divide(x, w), zero, -w)
        s = 1.0 + w
        q = 2.0 * s * (s + z * tl.full((), 2 / 3, x.dtype))
        w += w * divide(z * (q - z), s * (q - 2.0 * z))
    return w


@triton.jit
def w_and_sigma(
    x,  # compute dtype, in
    NEAR_BRANCH: tl.constexpr,  # whether x may be negative
):
    """W(x) and e^−W(x); NaN where x is NaN or below the least argument."""
    tiny = tl.full((), 1e-5 if x.dtype == tl.float64 else 1e-3, x.dtype)
    finite = tl.where(x < largest(x), x, largest(x))
    size = tl.abs(finite)
    usual = tl.where(size < tiny, 1.0, finite)
    w = beyond_branch(tl.where(usual < -0.25, 1.0, usual))
    least = tl.zeros_like(branch_point(x)[0])
    if NEAR_BRANCH:
        least = branch_point(x)[0]
        w = tl.where(usual < -0.25, near_branch(tl.where(usual < -0.25, usual, -0.25)), w)
    small = tl.where(size < tiny, x, 0.0)
    series = 1.0 - small * (1.0 - small * (1.5 - small * tl.full((), 8 / 3, x.dtype)))
    w = tl.where(size < tiny, small * series, w)
    sigma = tl.where(size < tiny, series, divide(w, tl.where(size < tiny, 1.0, finite)))
    infinite = x > largest(x)
    w, sigma = tl.where(infinite, x, w), tl.where(infinite, 0.0, sigma)
    return tl.where(x >= least, w, float("nan")), tl.where(x >= least, sigma, float("nan"))


@triton.jit
def lambert_w(
    x,  # (count,) float64 or float32, in
    w,  # (count,) as x, out
    count,  # elements, in
    BLOCK: tl.constexpr,
):
    """W of every x."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + places, mask=places < count, other=0.0)
    tl.store(w + places, w_and_sigma(value, True)[0], mask=places < count)


@triton.jit
def confidence(
    losses,  # (count,) float64 or float32, in
    thresholds,  # (count,) as losses, or one where stride is 0, in
    stride,  # 1 or 0, in
    twice_lambda,  # (1,) as losses, in
    sigma,  # (count,) as losses, out
    count,  # elements, in
    BLOCK: tl.constexpr,
):
    """exp(−W([(ℓ − τ)/2λ]₊)) of every loss."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    loss = tl.load(losses + places, mask=places < count, other=0.0)
    threshold = tl.load(thresholds + places * stride, mask=places < count, other=0.0)
    # Both may be infinite.
    x = tl.where(loss <= threshold, 0.0, divide(loss - threshold, tl.load(twice_lambda) + tl.zeros_like(loss)))
    tl.store(sigma + places, w_and_sigma(x, False)[1], mask=places < count)


@triton.jit
def superloss(
    losses,  # (count,) float64 or float32, in
    taus,  # (count,) as losses, or one where stride is 0, in
    stride,  # 1 or 0, in
    lam,  # (1,) as losses, in: λ
    values,  # (count,) as losses, out
    sigma,  # (count,) as losses, out
    count,  # elements, in
    BLOCK: tl.constexpr,
):
    """λ W (W + 2) and e^−W with x = (ℓ − τ)/2λ; below x = −1/e σ is e."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    loss = tl.load(losses + places, mask=places < count, other=0.0)
    excess = loss - tl.load(taus + places * stride, mask=places < count, other=0.0)
    weight = tl.load(lam) + tl.zeros_like(loss)
    x = divide(excess, 2.0 * weight)
    least = branch_point(x)[0]
    w, sigma_of_x = w_and_sigma(tl.where(x < least, least, x), True)
    e = tl.full((), 2.7182818284590452354, x.dtype)
    tl.store(values + places, tl.where(x < least, excess * e + weight, weight * w * (w + 2.0)), mask=places < count)
    tl.store(sigma + places, tl.where(x < least, e, sigma_of_x), mask=places < count)
