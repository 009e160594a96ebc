# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The first and the last kernel of a planned step in Triton: samples made ready, and a sum of parts."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type
from robustdml_ops.engine.rows.kernels import inverse_row_norm, store_unit_rows


@triton.jit(do_not_specialize=["B", "classes"])
def prepare_samples(
    X,  # (B, D) any floating type, any strides, in: embeddings
    U,  # (B, D) operand dtype, contiguous, out: unit rows
    inverse_norm,  # (B,) compute dtype, out: 1 / |x|, 0 for zero rows
    labels,  # (B,) int64, in: in 0 … classes − 1, or a device-side assertion
    weights,  # (B,) any floating type or bool, in: of samples; None: 1
    log_weights,  # (B,) compute dtype, out: log(weight) + bias, −∞ for a weight of 0; None: not wanted
    counts,  # (programs,) int32, out: parts of a number of samples, see DISTINCT
    P,  # (C, D) any floating type, any strides, in: proxies; None: no target
    target,  # (B,) compute dtype, out: scale · cosine with the label's proxy; None exactly where P is
    B,  # samples, in
    D,  # columns, in
    classes,  # C, in
    row_stride,  # of X in elements, in
    column_stride,  # of X in elements, in
    P_row_stride,  # in elements, in
    P_column_stride,  # in elements, in
    bias: tl.float64,  # in
    scale: tl.float64,  # of cosines in target, in
    largest: tl.float64,  # the largest weight, in
    DISTINCT: tl.constexpr,  # whether only the first sample of a class counts; samples of weight 0 never do
    BLOCK_R: tl.constexpr,  # samples a program
    BLOCK_D: tl.constexpr,  # columns a step
    BLOCK_B: tl.constexpr,  # labels a step
):
    """Unit embeddings, checked labels and weights, biases of the exponents, and |P⁺| or the number of samples."""
    program = tl.program_id(0)
    r = program * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < B
    rows = r.to(tl.int64)
    dtype: tl.constexpr = inverse_norm.dtype.element_ty
    inverse = inverse_row_norm(X + rows * row_stride, inside, D, column_stride, dtype, BLOCK_R, BLOCK_D)
    tl.store(inverse_norm + rows, inverse, mask=inside)
    store_unit_rows(U, X + rows * row_stride, rows, inside, inverse, D, column_stride, BLOCK_D)

    y = tl.load(labels + rows, mask=inside, other=0)
    tl.device_assert((y >= 0) & (y < classes), "a label is outside 0 … num_classes − 1")
    if P is not None:
        of_label = (P + y * P_row_stride, inside & (y >= 0) & (y < classes), P_column_stride)
        cosine = paired_cosines(X + rows * row_stride, inverse, column_stride, of_label, D, dtype, BLOCK_R, BLOCK_D)
        tl.store(target + rows, cosine * in_type(scale, dtype), mask=inside)
    counted = inside
    logarithm = tl.zeros((BLOCK_R,), dtype)
    if weights is not None:
        weight = tl.load(weights + rows, mask=inside, other=0).to(dtype)
        tl.device_assert((weight >= 0) & (weight <= in_type(largest, dtype)), "sample_weights must be finite and ≥ 0")
        counted = inside & (weight > 0)
        logarithm = tl.where(counted, tl.log(tl.where(counted, weight, 1.0)), float("-inf"))
    if log_weights is not None:
        tl.store(log_weights + rows, logarithm + in_type(bias, dtype), mask=inside)
    if DISTINCT:
        # Only samples before this program's last can be of the same class and come first.
        for start in range(0, tl.minimum(B, (program + 1) * BLOCK_R), BLOCK_B):
            j = start + tl.arange(0, BLOCK_B)
            other = tl.load(labels + j, mask=j < B, other=-1)
            if weights is not None:
                other = tl.where(tl.load(weights + j, mask=j < B, other=0).to(dtype) > 0, other, -1)
            before = (other[None, :] == y[:, None]) & (j[None, :] < r[:, None])
            counted &= tl.max(before.to(tl.int32), axis=1) == 0
    tl.store(counts + program, tl.sum(counted.to(tl.int32), axis=0))


@triton.jit
def paired_cosines(
    x_rows,  # (BLOCK_R,) addresses of embeddings, in
    inverse,  # (BLOCK_R,) compute dtype, in: 1 / |x|
    column_stride,  # of the embeddings in elements, in
    of_label,  # in: (BLOCK_R,) addresses of proxies, which are read, and the columns' stride
    D,  # columns, in
    dtype: tl.constexpr,  # the type to compute in
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Cosines of rows with one row each, (BLOCK_R,); 0 for rows that are not read."""
    p_rows, read, stride = of_label
    of_proxy = inverse_row_norm(p_rows, read, D, stride, dtype, BLOCK_R, BLOCK_D)
    each = tl.zeros((BLOCK_R, BLOCK_D), dtype=dtype)
    for start in range(0, D, BLOCK_D):
        d = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[None, :]
        mask = read[:, None] & (d < D)
        x = tl.load(x_rows[:, None] + d * column_stride, mask=mask, other=0.0).to(dtype)
        p = tl.load(p_rows[:, None] + d * stride, mask=mask, other=0.0).to(dtype)
        each += (x * inverse[:, None]) * (p * of_proxy[:, None])
    return tl.sum(each, axis=1)


@triton.jit
def sum_counts(
    counts,  # (parts,) int32, in: see prepare_samples
    parts,  # in
    BLOCK: tl.constexpr,  # parts a step
):
    """The number of samples, or of classes with one, () int32; at least 1."""
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, parts, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(counts + place, mask=place < parts, other=0)
    return tl.maximum(tl.sum(total, axis=0), 1)


@triton.jit(do_not_specialize=["n"])
def add_parts(
    parts,  # (n,) float64, in
    total,  # () compute dtype, out
    n,  # in
    BLOCK: tl.constexpr,  # parts a step
):
    """The sum of all parts, by one program in an order that never changes."""
    summed = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n, BLOCK):
        place = start + tl.arange(0, BLOCK)
        summed += tl.load(parts + place, mask=place < n, other=0.0)
    tl.store(total, tl.sum(summed, axis=0))
