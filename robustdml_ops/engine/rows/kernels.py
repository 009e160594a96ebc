# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Rows of length 1 in Triton: their Jacobian, and the tiles of operands that fused kernels multiply."""

import triton
import triton.language as tl


@triton.jit
def near_one_factor(
    squares,  # compute dtype, in: sums of squares, or the largest of them, as the type has them
):
    """Powers of two that bring rows within the reach of ``rows/lengths.py``; 1 where they are."""
    if squares.dtype == tl.float64:
        near = (squares > 1e-200) & (squares < 1e200)
        factor = tl.where(squares < 1.0, 2.0**600, 2.0**-600)
    else:
        near = (squares > 1e-18) & (squares < 1e18)
        factor = tl.where(squares < 1.0, 2.0**80, 2.0**-80)
    return tl.where(near, 1.0, factor)


@triton.jit
def inverse_length(
    squares,  # compute dtype, in: sums of squares of rows times ``factor``
    factor,  # compute dtype, in: of near_one_factor
):
    """1 / |p · factor|; 0 for a p shorter than the smallest normal number, NaN for one with NaN or inf."""
    norm = tl.sqrt(squares)
    smallest: tl.constexpr = 2.0**-1022 if squares.dtype == tl.float64 else 2.0**-126
    zero = norm < factor * smallest
    inverse = tl.where(zero, 0.0, 1.0 / tl.where(zero, 1.0, norm))
    # 1 / inf would pass inf off as a zero row.
    return tl.where(norm == float("inf"), float("nan"), inverse)


@triton.jit
def normalize_rows(
    P,  # (n, D) any floating type, any strides, in
    U,  # (n, D) operand dtype, contiguous, out: unit rows, zeros for zero rows; None: not wanted
    inverse_norm,  # (n,) compute dtype, out: 1 / |p|, 0 for zero rows
    n,  # rows, in
    D,  # columns, in
    row_stride,  # of P in elements, in
    column_stride,  # of P in elements, in
    BLOCK_R: tl.constexpr,  # rows a program
    BLOCK_D: tl.constexpr,  # columns a step
):
    """U = P / |P| by rows."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < n
    r = r.to(tl.int64)
    inverse = inverse_row_norm(
        P + r * row_stride, inside, D, column_stride, inverse_norm.dtype.element_ty, BLOCK_R, BLOCK_D
    )
    tl.store(inverse_norm + r, inverse, mask=inside)
    if U is not None:
        store_unit_rows(U, P + r * row_stride, r, inside, inverse, D, column_stride, BLOCK_D)


@triton.jit
def store_unit_rows(
    U,  # (n, D) operand dtype, contiguous, out
    p_rows,  # (BLOCK_R,) addresses of rows, any floating type, in
    rows,  # (BLOCK_R,) int64, in
    inside,  # (BLOCK_R,) bool, in: which rows exist
    inverse,  # (BLOCK_R,) compute dtype, in: 1 / |p|
    D,  # columns, in
    column_stride,  # in elements, in
    BLOCK_D: tl.constexpr,  # columns a step
):
    """Store rows of length 1."""
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        p = tl.load(p_rows[:, None] + d.to(tl.int64)[None, :] * column_stride, mask=mask, other=0.0)
        tl.store(U + rows[:, None] * D + d[None, :], p.to(inverse.dtype) * inverse[:, None], mask=mask)


@triton.jit
def inverse_row_norm(
    p_rows,  # (BLOCK_R,) addresses of rows, any floating type, in
    inside,  # (BLOCK_R,) bool, in: which rows exist
    D,  # columns, in
    column_stride,  # in elements, in
    dtype: tl.constexpr,  # the type to compute in
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """1 / |p| (BLOCK_R,), 0 for zero rows; NaN for rows with NaN or inf."""
    # The largest element decides whether squares could overflow or lose digits; without a branch, as a branch that
    # holds a loop costs registers. Threads meet once, after each loop.
    each = tl.zeros((BLOCK_R, BLOCK_D), dtype=dtype)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        p = tl.load(p_rows[:, None] + d.to(tl.int64)[None, :] * column_stride, mask=mask, other=0.0).to(dtype)
        each = tl.maximum(each, tl.abs(p))
    largest = tl.max(each, axis=1)
    factor = near_one_factor(largest * largest)
    each = tl.zeros((BLOCK_R, BLOCK_D), dtype=dtype)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        p = tl.load(p_rows[:, None] + d.to(tl.int64)[None, :] * column_stride, mask=mask, other=0.0).to(dtype)
        p *= factor[:, None]
        each += p * p
    return inverse_length(tl.sum(each, axis=1), factor) * factor


@triton.jit
def subtract_radial(
    G,  # (n, D) compute or operand dtype, any strides, in: dS·U for unit rows, else dS·X with the factor 1 / |v|
    V,  # (n, D) any floating type, any strides, in: unit rows, or rows as they were multiplied
    row_factor,  # (n,) compute dtype, in: of the rows of G, such as 1 / |p|, 0 for zero rows; None: 1
    factor,  # () compute dtype, in: upstream gradient; None: 1
    out,  # (n, D) any floating type, any strides, out: dL/dP; may be G
    n,  # rows, in
    D,  # columns, in
    G_row_stride,  # in elements, in
    G_column_stride,  # in elements, in
    row_stride,  # of V in elements, in
    column_stride,  # of V in elements, in
    out_row_stride,  # in elements, in
    out_column_stride,  # in elements, in
    UNIT: tl.constexpr,  # whether V are unit rows
    BLOCK_R: tl.constexpr,  # rows a program
    BLOCK_D: tl.constexpr,  # columns a step
):
    """Out ← (G − (G·u) u) · row_factor · factor by rows: the Jacobian of the normalisation, with u = V or V / |V|."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < n
    r = r.to(tl.int64)
    dtype: tl.constexpr = tl.float64 if G.dtype.element_ty == tl.float64 else tl.float32
    v_rows, g_rows, out_rows = V + r * row_stride, G + r * G_row_stride, out + r * out_row_stride
    to_unit = tl.full((BLOCK_R,), 1.0, dtype)
    shrink = tl.full((BLOCK_R,), 1.0, dtype)
    if not UNIT:
        to_unit = inverse_row_norm(v_rows, inside, D, column_stride, dtype, BLOCK_R, BLOCK_D)
    if row_factor is not None:
        shrink = tl.load(row_factor + r, mask=inside, other=0.0)
    upstream = tl.full((), 1.0, dtype)
    if factor is not None:
        upstream = tl.load(factor)
    each = tl.zeros((BLOCK_R, BLOCK_D), dtype=dtype)
    for start in range(0, D, BLOCK_D):
        d = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[None, :]
        mask = inside[:, None] & (d < D)
        g = tl.load(g_rows[:, None] + d * G_column_stride, mask=mask, other=0.0).to(dtype)
        v = tl.load(v_rows[:, None] + d * column_stride, mask=mask, other=0.0).to(dtype)
        each += g * (v * to_unit[:, None])
    along = tl.sum(each, axis=1)
    for start in range(0, D, BLOCK_D):
        d = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[None, :]
        mask = inside[:, None] & (d < D)
        g = tl.load(g_rows[:, None] + d * G_column_stride, mask=mask, other=0.0).to(dtype)
        v = tl.load(v_rows[:, None] + d * column_stride, mask=mask, other=0.0).to(dtype)
        value = (g - along[:, None] * (v * to_unit[:, None])) * shrink[:, None] * upstream
        tl.store(out_rows[:, None] + d * out_column_stride, value, mask=mask)


@triton.jit
def scale(
    G,  # (n,) any floating type, contiguous, in/out
    factor,  # () compute dtype, in
    n,  # elements, in
    BLOCK: tl.constexpr,  # elements a step
):
    """G ← G · factor; no element is read where the factor is 1."""
    value = tl.load(factor)
    if value != 1.0:
        step = tl.num_programs(0).to(tl.int64) * BLOCK
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, step):
            places = start + tl.arange(0, BLOCK)
            g = tl.load(G + places, mask=places < n, other=0.0)
            tl.store(G + places, g.to(value.dtype) * value, mask=places < n)


@triton.jit
def unit_rows(
    p_rows,  # (BLOCK_C,) addresses of proxies, any floating type, in
    inside,  # (BLOCK_C,) bool, in: which proxies exist
    inverse,  # (BLOCK_C,) float32, in: 1 / |p|; None: rows as they are, in the operand type
    start,  # first column, in
    D,  # columns in all, in
    column_stride,  # of the proxies in elements, in
    operand: tl.constexpr,  # type of the product's operands
    BLOCK_D: tl.constexpr,
):
    """Columns of unit proxies (BLOCK_C, BLOCK_D), scaled before they are rounded: float16 holds them at any norm."""
    d = start + tl.arange(0, BLOCK_D)
    mask = inside[:, None] & (d < D)[None, :]
    p = tl.load(p_rows[:, None] + d.to(tl.int64)[None, :] * column_stride, mask=mask, other=0.0)
    if inverse is not None:
        p = (p.to(tl.float32) * inverse[:, None]).to(operand)
    return p


@triton.jit
def embedding_columns(
    X,  # (B, D) operand dtype, contiguous, in
    columns,  # (BLOCK_B,) int32, in: candidates
    start,  # first column of X, in
    B,  # candidates in all, in
    D,  # columns in all, in
    BLOCK_D: tl.constexpr,
):
    """Xᵀ (BLOCK_D, BLOCK_B)."""
    d = start + tl.arange(0, BLOCK_D)
    mask = (d < D)[:, None] & (columns < B)[None, :]
    return tl.load(X + columns.to(tl.int64)[None, :] * D + d[:, None], mask=mask, other=0.0)
