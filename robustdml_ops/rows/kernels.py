# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Rows of length 1 in Triton: their Jacobian, and the tiles of operands that fused kernels multiply."""

import triton
import triton.language as tl

from robustdml_ops.rows import lengths

# As in the other backends.
TINY_NORM = tl.constexpr(lengths.TINY_NORM)


@triton.jit(do_not_specialize=["n"])
def normalize_rows(
    P,  # (n, D) any floating type, any strides, in
    U,  # (n, D) operand dtype, contiguous, out: unit rows, zeros for zero rows
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
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        p = tl.load(P + r[:, None] * row_stride + d.to(tl.int64)[None, :] * column_stride, mask=mask, other=0.0)
        tl.store(U + r[:, None] * D + d[None, :], p.to(inverse.dtype) * inverse[:, None], mask=mask)


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
    squares = tl.zeros((BLOCK_R,), dtype=dtype)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        p = tl.load(p_rows[:, None] + d.to(tl.int64)[None, :] * column_stride, mask=mask, other=0.0).to(dtype)
        squares += tl.sum(p * p, axis=1)
    norm = tl.sqrt(squares)
    tiny = norm < TINY_NORM
    inverse = tl.where(tiny, 0.0, 1.0 / tl.where(tiny, 1.0, norm))
    # 1 / inf would pass inf off as a zero row.
    return tl.where(norm == float("inf"), float("nan"), inverse)


@triton.jit(do_not_specialize=["n"])
def normalize_rows_backward(
    G,  # (n, D) compute dtype, contiguous, in: dL/dU; out: dL/dP
    U,  # (n, D) operand dtype, contiguous, in: unit rows
    inverse_norm,  # (n,) compute dtype, in: 1 / |p|, 0 for zero rows
    n,  # rows, in
    D,  # columns, in
    BLOCK_R: tl.constexpr,  # rows a program
    BLOCK_D: tl.constexpr,  # columns a step
):
    """G ← (G − (G·U) U) · inverse_norm by rows."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < n
    r = r.to(tl.int64)
    dtype = G.dtype.element_ty
    along = tl.zeros((BLOCK_R,), dtype=dtype)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        offset = r[:, None] * D + d[None, :]
        g = tl.load(G + offset, mask=mask, other=0.0)
        u = tl.load(U + offset, mask=mask, other=0.0).to(dtype)
        along += tl.sum(g * u, axis=1)
    inverse = tl.load(inverse_norm + r, mask=inside, other=0.0)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        offset = r[:, None] * D + d[None, :]
        g = tl.load(G + offset, mask=mask, other=0.0)
        u = tl.load(U + offset, mask=mask, other=0.0).to(dtype)
        tl.store(G + offset, (g - along[:, None] * u) * inverse[:, None], mask=mask)


@triton.jit
def unit_rows(
    p_rows,  # (BLOCK_C,) addresses of proxies, any floating type, in
    inside,  # (BLOCK_C,) bool, in: which proxies exist
    inverse,  # (BLOCK_C,) float32, in: 1 / |p|
    start,  # first column, in
    D,  # columns in all, in
    column_stride,  # of the proxies in elements, in
    operand: tl.constexpr,  # type of the product's operands
    BLOCK_D: tl.constexpr,
):
    """Columns of unit proxies (BLOCK_C, BLOCK_D).

    Scaled before they are rounded: these are the operands of the sweep, and float16 holds them whatever their norm.
    """
    d = start + tl.arange(0, BLOCK_D)
    mask = inside[:, None] & (d < D)[None, :]
    p = tl.load(p_rows[:, None] + d.to(tl.int64)[None, :] * column_stride, mask=mask, other=0.0)
    return (p.to(tl.float32) * inverse[:, None]).to(operand)


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
