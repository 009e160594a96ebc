# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The fit of every class in one launch; ``docs/numerics.md`` derives the estimators."""

import triton
import triton.language as tl

from robustdml_ops.ops.vmf import problem
from robustdml_ops.ops.vmf.kernels import function_of

BANERJEE_ERROR = tl.constexpr(problem.BANERJEE_ERROR)
NEWTON_STEPS = tl.constexpr(problem.NEWTON_STEPS)


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
