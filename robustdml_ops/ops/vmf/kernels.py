# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The functions of the von Mises–Fisher distribution and its fit; ``docs/numerics.md`` derives both."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import divide, largest, log_normal
from robustdml_ops.ops.vmf import problem
from robustdml_ops.ops.vmf.problem import log_debye_coefficients

BANERJEE_ERROR = tl.constexpr(problem.BANERJEE_ERROR)
NEWTON_STEPS = tl.constexpr(problem.NEWTON_STEPS)
DEBYE = tl.constexpr(tuple(float(c) for row in log_debye_coefficients() for c in row))  # c_kj, row after row


@triton.jit
def log1p_positive(
    x,  # compute dtype, in: finite, at least 0
    offset,  # compute dtype, in
):
    """Sum of offset and log(1 + x): what 1 + x rounds away comes back as the correction."""
    u = 1.0 + x
    return log_normal(u, divide(x - (u - 1.0), u), offset)


@triton.jit
def power_series(
    z,  # compute dtype, in: κ²/4
    V: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
):
    """₀F₁(; V+1; z) from the term FIRST − 1 on, divided by that term."""
    total = tl.full(z.shape, 1.0, z.dtype)
    for i in tl.static_range(LAST - FIRST + 1):
        total = 1.0 + z * tl.full((), 1 / ((LAST - i) * (V + LAST - i)), z.dtype) * total
    return total


@triton.constexpr_function
def debye_coefficient(table, k, j, weights):
    """c_kj; with ``weights`` ≥ 1 times k + 2j, and with 2 also times k + 2 + 2j."""
    weight = (k + 2 * j if weights >= 1 else 1) * (k + 2 + 2 * j if weights >= 2 else 1)
    return table[k * (k + 1) // 2 - 1 + j] * weight


@triton.jit
def debye_series(
    inverse_r,  # compute dtype, in
    q,  # compute dtype, in
    TERMS: tl.constexpr,
    WEIGHTS: tl.constexpr,  # 0: the series itself; 1: its form in A; 2: in A'
):
    """Σ_k r^−k Σ_j c_kj q^j, each c_kj times its weight."""
    total = tl.zeros_like(q)
    for i in tl.static_range(TERMS):
        row = tl.zeros_like(q)
        for j in tl.static_range(TERMS - i + 1):
            row = row * q + tl.full((), debye_coefficient(DEBYE, TERMS - i, TERMS - i - j, WEIGHTS), q.dtype)
        total = (total + row) * inverse_r
    return total


@triton.jit
def log_positive(
    x,  # float64, in: at least 0
):
    """log(x), subnormal numbers included; −∞ for 0."""
    small = x < 2.2250738585072014e-308
    scaled = x * tl.where(small, tl.full((), 18014398509481984.0, tl.float64), 1.0)  # by 2⁵⁴
    log_scale = tl.full((), -37.42994775023704767, tl.float64)  # −54 log 2
    value = log_normal(tl.where(x > 0, scaled, 1.0), tl.where(small, log_scale, 0.0), 0.0)
    return tl.where(x > 0, value, float("-inf"))


@triton.jit
def by_series(
    kappa,  # compute dtype, in: at most SERIES_BELOW
    FUNCTION: tl.constexpr,
    V: tl.constexpr,
    TERMS: tl.constexpr,
):
    """By the power series of ₀F₁; ``log_i`` without its power of κ."""
    z = kappa * kappa * 0.25
    if FUNCTION == "ratio" or FUNCTION == "ratio_derivative":
        F0 = power_series(z, V, 1, TERMS)
        F1 = power_series(z, V + 1, 1, TERMS)
        by_kappa = divide(F1, F0) * tl.full((), 0.5 / (V + 1), z.dtype)
        value = kappa * by_kappa
        if FUNCTION == "ratio_derivative":
            F2 = power_series(z, V + 2, 1, TERMS)
            following = kappa * tl.full((), 0.5 / (V + 2), z.dtype) * divide(F2, F1)
            value = by_kappa + value * (following - value)
    else:
        above_one = z * tl.full((), 1 / (V + 1), z.dtype) * power_series(z, V, 2, TERMS)
        value = -log1p_positive(above_one, -kappa) if FUNCTION == "peak" else log1p_positive(above_one, 0.0)
    return value


@triton.jit
def by_debye(
    kappa,  # compute dtype, in: at least SERIES_BELOW
    r,  # compute dtype, in: √(V² + κ²)
    FUNCTION: tl.constexpr,
    V: tl.constexpr,
    BASE: tl.constexpr,
    CONSTANT: tl.constexpr,
    TERMS: tl.constexpr,
):
    """By the logarithm of Debye's series; ``log_i`` without its power of κ."""
    v = tl.full((), V, kappa.dtype)
    inverse_r = divide(1.0, r)
    q = (v * inverse_r) * (v * inverse_r)
    if FUNCTION == "log_i":
        half_log_2pi = tl.full((), 0.91893853320467274178, kappa.dtype)
        value = r - (half_log_2pi + 0.5 * log_positive(r)) + debye_series(inverse_r, q, TERMS, 0)
    elif FUNCTION == "ratio":
        first = inverse_r * (0.5 + debye_series(inverse_r, q, TERMS, 1))
        value = divide(kappa, v + r) - kappa * inverse_r * first
    elif FUNCTION == "ratio_derivative":
        first = inverse_r * inverse_r * (0.5 + debye_series(inverse_r, q, TERMS, 1))
        slope = kappa * inverse_r * inverse_r
        second = slope * slope * (1.0 + debye_series(inverse_r, q, TERMS, 2))
        value = divide(v * inverse_r, v + r) - first + second
    else:
        delta = kappa * divide(kappa, r + v)
        ratio = delta * tl.full((), 1 / BASE, kappa.dtype)
        excess = tl.full((), (V - BASE) / BASE, kappa.dtype)
        logs = v * log1p_positive(0.5 * ratio + excess, 0.0) + 0.5 * log1p_positive(ratio + excess, 0.0)
        rest = debye_series(inverse_r, q, TERMS, 0) + tl.full((), CONSTANT, kappa.dtype)
        if FUNCTION == "log_0f1":
            value = delta - logs + rest
        else:
            value = divide(2.0 * v, 1.0 + divide(v + r, kappa)) + logs - rest
    return value


@triton.jit
def function_of(
    k,  # float64 or float32, in
    FUNCTION: tl.constexpr,  # a name in the table of robustdml_ops.ops.vmf.problem
    ORDER: tl.constexpr,  # VmfOrder of the type of k
):
    """One function of κ; ∞ has its limit, a negative number or NaN gives NaN."""
    V: tl.constexpr = ORDER.v
    limit = tl.full((), ORDER.series_below, k.dtype)
    v = tl.full((), V, k.dtype)
    squarable = tl.full((), 1e150 if k.dtype == tl.float64 else 1e18, k.dtype)
    finite = tl.where(k < largest(k), k, largest(k))
    small = finite < limit
    large_kappa = tl.where(small, limit, finite)
    # Beyond `squarable` the square of κ would overflow, and r is κ.
    squared = tl.where(large_kappa < squarable, large_kappa, squarable)
    if k.dtype == tl.float64:
        r = tl.sqrt(v * v + squared * squared) + (large_kappa - squared)
    else:
        r = tl.sqrt_rn(v * v + squared * squared) + (large_kappa - squared)
    value = tl.where(
        small,
        by_series(tl.where(small, finite, limit), FUNCTION, V, ORDER.series_terms),
        by_debye(large_kappa, r, FUNCTION, V, ORDER.base, ORDER.constant, ORDER.debye_terms),
    )
    if FUNCTION == "log_i":
        # Times (κ/2)^v / Γ(v + 1) for the power series, (κ/(v + r))^v for Debye's.
        if V > 0:
            value += v * log_positive(tl.where(small, finite, divide(finite, v + r)))
        value -= tl.where(small, tl.full((), ORDER.log_scale, k.dtype), 0.0)
    if FUNCTION != "ratio" and FUNCTION != "ratio_derivative":
        value += tl.where(k > largest(k), k, 0.0)
    return tl.where(k >= 0, value, float("nan"))


@triton.jit
def vmf(
    kappa,  # (count,) float64 or float32, in
    out,  # (count,) as kappa, out
    count,  # elements, in
    FUNCTION: tl.constexpr,  # a name in the table of robustdml_ops.ops.vmf.problem
    ORDER: tl.constexpr,  # VmfOrder of the type of kappa
    BLOCK: tl.constexpr,
):
    """One function of every κ."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    k = tl.load(kappa + places, mask=places < count, other=0.0)
    tl.store(out + places, function_of(k, FUNCTION, ORDER), mask=places < count)


@triton.jit(do_not_specialize=["count"])
def vmf_fit(
    sums,  # (C, D) float32 or float64, contiguous, in: of unit vectors
    counts,  # (C,) int64 or float64, in
    classes,  # (count,) int64, in: rows to fit; None: the first ones
    kappa,  # (count,) as sums, out
    log_peak,  # (count,) as sums, out
    norm,  # (count,) float64, out
    count,  # classes to fit, in
    D,  # columns of the sums, in
    DIM: tl.constexpr,  # of the sphere
    LARGEST: tl.constexpr,  # upper bound of R̄²
    ESTIMATOR: tl.constexpr,
    CORRECTION: tl.constexpr,
    ORDER: tl.constexpr,  # VmfOrder of the type of the sums
    ORDER_64: tl.constexpr,  # that of float64, in which κ is computed
    BLOCK_R: tl.constexpr,  # classes a program
    BLOCK_D: tl.constexpr,  # columns a step
):
    """Length of the sum, concentration and log-density at the mean direction of every class. NaN stays NaN."""
    places = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = places < count
    rows = places.to(tl.int64)
    if classes is not None:
        rows = tl.load(classes + places, mask=inside, other=0)
    squares = tl.zeros((BLOCK_R, BLOCK_D), tl.float64)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        element = tl.load(sums + rows[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float64)
        squares += element * element
    length_of_sum = tl.sqrt(tl.sum(squares, axis=1))
    tl.store(norm + places, length_of_sum, mask=inside)
    n = tl.load(counts + rows, mask=inside, other=0).to(tl.float64)
    # The corrected mean length R̄ and the first estimate of κ.
    tiny = tl.full((), 2.2250738585072014e-308, tl.float64)
    largest = tl.full((), LARGEST, tl.float64)
    mean = length_of_sum / tl.where(n > 1.0, n, 1.0)
    square = mean * mean
    if CORRECTION != "none":
        others = tl.where(n - 1.0 > tiny, n - 1.0, tiny)
        above = (n * square - 1.0) / others
        unbiased = tl.where(above < 0.0, 0.0, above)
        predicted = unbiased * unbiased / tl.where(square < tiny, tiny, square)
        square = unbiased if CORRECTION == "u" else predicted
    square = tl.where(square > largest, largest, square)
    length = tl.sqrt(square)
    subtracted = square
    if ESTIMATOR == "prism":
        subtracted = length
    k = length * (DIM - subtracted) / (1.0 - square)
    if ESTIMATOR == "newton":
        # Where R̄ is within rounding of 1, ratio − length is noise: stay near the start, which is as exact as R̄.
        least, most = (1.0 - BANERJEE_ERROR) * k, (1.0 + BANERJEE_ERROR) * k
        for _ in range(NEWTON_STEPS):
            ratio = function_of(k, "ratio", ORDER_64)
            slope = function_of(k, "ratio_derivative", ORDER_64)
            next_k = k - (ratio - length) / slope
            k = tl.where(next_k < least, least, tl.where(next_k > most, most, next_k))
    found = tl.where(n > 1.0, k, 0.0).to(kappa.dtype.element_ty)
    tl.store(kappa + places, found, mask=inside)
    tl.store(log_peak + places, function_of(found, "peak", ORDER), mask=inside)
