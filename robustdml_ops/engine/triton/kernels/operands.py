# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What the fused kernels multiply: tiles of proxies and of embeddings."""

import triton
import triton.language as tl


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
