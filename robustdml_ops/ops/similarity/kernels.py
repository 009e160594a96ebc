# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Cosines in Triton: one launch, lengths taken from the tiles that the product reads anyway."""

import triton
import triton.language as tl

from robustdml_ops.engine.rows.kernels import inverse_length, near_one_factor


@triton.jit
def cosines_by_columns(
    x_rows,  # (BLOCK_B,) addresses of rows of X, in
    p_rows,  # (BLOCK_C,) addresses of rows of P, in
    x_factor,  # (BLOCK_B,) float32, in: that brings each row near length 1
    p_factor,  # (BLOCK_C,) float32, in
    b_inside,  # (BLOCK_B,) bool, in: which exist
    c_inside,  # (BLOCK_C,) bool, in
    X_column_stride,  # of X in elements, in
    P_column_stride,  # of P in elements, in
    D: tl.constexpr,  # columns of X and P
    BLOCK_B: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Cosines (BLOCK_B, BLOCK_C) of rows whose squares or products overflow or lose their digits: slow, and rare."""
    products = tl.zeros((BLOCK_B, BLOCK_C), dtype=tl.float32)
    x_squares, p_squares = tl.zeros((BLOCK_B,), dtype=tl.float32), tl.zeros((BLOCK_C,), dtype=tl.float32)
    for _ in range(0, D):
        x = tl.load(x_rows, mask=b_inside, other=0.0).to(tl.float32) * x_factor
        p = tl.load(p_rows, mask=c_inside, other=0.0).to(tl.float32) * p_factor
        x_rows, p_rows = x_rows + X_column_stride, p_rows + P_column_stride
        products += x[:, None] * p[None, :]
        x_squares += x * x
        p_squares += p * p
    return products * inverse_length(x_squares, x_factor)[:, None] * inverse_length(p_squares, p_factor)[None, :]


@triton.jit
def similarity(
    X,  # (B, D) any floating type, any strides, in: embeddings of any length
    P,  # (C, D) any floating type, any strides, in: proxies of any length
    S,  # (B, C) any floating type, contiguous, out: cosines
    B,  # embeddings, in
    C,  # proxies, in
    X_row_stride,  # of X in elements, in
    X_column_stride,  # of X in elements, in
    P_row_stride,  # of P in elements, in
    P_column_stride,  # of P in elements, in
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
    x_rows, p_rows = X + b.to(tl.int64) * X_row_stride, P + c.to(tl.int64) * P_row_stride
    products = tl.zeros((BLOCK_B, BLOCK_C), dtype=tl.float32)
    x_squares, p_squares = tl.zeros((BLOCK_B,), dtype=tl.float32), tl.zeros((BLOCK_C,), dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        x_mask, p_mask = b_inside[:, None] & (d < D)[None, :], c_inside[:, None] & (d < D)[None, :]
        d = d.to(tl.int64)[None, :]
        x = tl.load(x_rows[:, None] + d * X_column_stride, mask=x_mask, other=0.0).to(OPERAND)
        p = tl.load(p_rows[:, None] + d * P_column_stride, mask=p_mask, other=0.0).to(OPERAND)
        products = tl.dot(x, tl.trans(p), products, input_precision=input_precision)
        # Of the operands as rounded: so a row has cosine 1 with itself.
        wide_x, wide_p = x.to(tl.float32), p.to(tl.float32)
        x_squares += tl.sum(wide_x * wide_x, axis=1)
        p_squares += tl.sum(wide_p * wide_p, axis=1)
    x_factor = tl.where(b_inside, near_one_factor(x_squares), 1.0)
    p_factor = tl.where(c_inside, near_one_factor(p_squares), 1.0)
    far = tl.max((x_factor != 1.0).to(tl.int32), axis=0) + tl.max((p_factor != 1.0).to(tl.int32), axis=0)
    cosines = products * inverse_length(x_squares, x_factor)[:, None] * inverse_length(p_squares, p_factor)[None, :]
    places = S + b.to(tl.int64)[:, None] * C + c.to(tl.int64)[None, :]
    mask = b_inside[:, None] & c_inside[None, :]
    tl.store(places, cosines, mask=mask)
    if far > 0:
        cosines = cosines_by_columns(
            x_rows, p_rows, x_factor, p_factor, b_inside, c_inside, X_column_stride, P_column_stride,
            D, BLOCK_B, BLOCK_C,
        )  # fmt: skip
        tl.store(places, cosines, mask=mask)
