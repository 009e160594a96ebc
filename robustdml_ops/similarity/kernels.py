# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Cosines in Triton: one launch, lengths taken from the tiles that the product reads anyway."""

import triton
import triton.language as tl

from robustdml_ops.rows import lengths

# As in the other backends.
TINY_NORM = tl.constexpr(lengths.TINY_NORM)


@triton.jit
def inverse_length(
    squares,  # float32, in: sums of squares
):
    """1 / √squares, 0 for zero rows; NaN for rows with NaN or inf."""
    norm = tl.sqrt(squares)
    tiny = norm < TINY_NORM
    inverse = tl.where(tiny, 0.0, 1.0 / tl.where(tiny, 1.0, norm))
    # 1 / inf would pass inf off as a zero row.
    return tl.where(norm == float("inf"), float("nan"), inverse)


@triton.jit
def similarity(
    X,  # (B, D) any floating type, any strides, in: embeddings of any length
    P,  # (C, D) any floating type, any strides, in: proxies of any length
    S,  # (B, C) any floating type, rows of stride S_stride, out: cosines
    B,  # embeddings, in
    C,  # proxies, in
    X_row_stride,  # of X in elements, in
    X_column_stride,  # of X in elements, in
    P_row_stride,  # of P in elements, in
    P_column_stride,  # of P in elements, in
    S_stride,  # of S in elements, in
    D: tl.constexpr,  # columns of X and P
    OPERAND: tl.constexpr,  # type of the product's operands
    BLOCK_B: tl.constexpr,  # embeddings a program
    BLOCK_C: tl.constexpr,  # proxies a program
    BLOCK_D: tl.constexpr,  # columns a step
    GROUP: tl.constexpr,  # row blocks that share a column block in L2
    input_precision: tl.constexpr,  # of float32 operands: "ieee" or "tf32"
):
    """S = cos(X, P): products of the rows as they are, divided by both lengths at the end."""
    # Programs in a column of GROUP row blocks after one another read the same proxies while they are in L2.
    row_blocks = tl.cdiv(B, BLOCK_B)
    width = GROUP * tl.cdiv(C, BLOCK_C)
    group = tl.program_id(0) // width
    group_rows = tl.minimum(row_blocks - group * GROUP, GROUP)
    within = tl.program_id(0) % width
    b = (group * GROUP + within % group_rows) * BLOCK_B + tl.arange(0, BLOCK_B)
    c = (within // group_rows) * BLOCK_C + tl.arange(0, BLOCK_C)
    b_inside, c_inside = b < B, c < C
    x_rows = X + b.to(tl.int64)[:, None] * X_row_stride
    p_rows = P + c.to(tl.int64)[:, None] * P_row_stride
    products = tl.zeros((BLOCK_B, BLOCK_C), dtype=tl.float32)
    x_squares, p_squares = tl.zeros((BLOCK_B,), dtype=tl.float32), tl.zeros((BLOCK_C,), dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        d_inside = (d < D)[None, :]
        x = tl.load(x_rows + d.to(tl.int64)[None, :] * X_column_stride, mask=b_inside[:, None] & d_inside, other=0.0)
        p = tl.load(p_rows + d.to(tl.int64)[None, :] * P_column_stride, mask=c_inside[:, None] & d_inside, other=0.0)
        x, p = x.to(OPERAND), p.to(OPERAND)
        products = tl.dot(x, tl.trans(p), products, input_precision=input_precision)
        # Of the operands as rounded: so a row has cosine 1 with itself.
        wide_x, wide_p = x.to(tl.float32), p.to(tl.float32)
        x_squares += tl.sum(wide_x * wide_x, axis=1)
        p_squares += tl.sum(wide_p * wide_p, axis=1)
    cosines = products * inverse_length(x_squares)[:, None] * inverse_length(p_squares)[None, :]
    places = S + b.to(tl.int64)[:, None] * S_stride + c.to(tl.int64)[None, :]
    tl.store(places, cosines, mask=b_inside[:, None] & c_inside[None, :])
