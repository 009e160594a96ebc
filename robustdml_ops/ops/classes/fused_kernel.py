# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Similarities and sums over the classes in one launch: neither cosines nor unit proxies are written."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type
from robustdml_ops.engine.rows.kernels import embedding_columns, inverse_row_norm, unit_rows
from robustdml_ops.ops.classes.kernels import (
    LOWEST,
    add_center,
    add_logits,
    first_center,
    slope_and_offset,
    store_partial,
)

# ``operands`` of similarity_tile: X, x (BLOCK_D, BLOCK_B), whole columns of Xᵀ where D ≤ BLOCK_D, P, columns
# (BLOCK_B,) int32, row_stride, column_stride, NORMALIZE, and input_precision, as fused_class_lse has them.


@triton.jit
def similarity_tile(
    operands,  # in: see above
    rows,  # (BLOCK_C,) int64, in: rows of P
    inside,  # (BLOCK_C,) bool, in: which exist
    B,  # samples in all, in
    D: tl.constexpr,  # columns of X and P
    BLOCK_C: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """S (BLOCK_C, BLOCK_B) float32."""
    X, x, P, columns, row_stride, column_stride, NORMALIZE, input_precision = operands
    p_rows = P + rows * row_stride
    operand: tl.constexpr = X.dtype.element_ty
    if NORMALIZE:
        inverse = inverse_row_norm(p_rows, inside, D, column_stride, tl.float32, BLOCK_C, BLOCK_D)
    else:
        inverse = tl.full((BLOCK_C,), 1.0, tl.float32)
    if D <= BLOCK_D:
        u = unit_rows(p_rows, inside, inverse, 0, D, column_stride, operand, BLOCK_D)
        s = tl.dot(u, x, input_precision=input_precision)
    else:
        s = tl.zeros((BLOCK_C, BLOCK_B), dtype=tl.float32)
        for start in range(0, D, BLOCK_D):
            u = unit_rows(p_rows, inside, inverse, start, D, column_stride, operand, BLOCK_D)
            x = embedding_columns(X, columns, start, B, D, BLOCK_D)
            s = tl.dot(u, x, s, input_precision=input_precision)
    return s


@triton.jit(do_not_specialize=["per_part"])
def fused_class_lse(
    X,  # (B, D) operand dtype, contiguous, in: unit embeddings
    P,  # (C·H, D) any floating type, any strides, in: proxies
    labels,  # (B,) int64, in
    scale,  # (C,) or () float32, in
    bias,  # (C,) float32, in; None: none
    target,  # (B,) float32, out: logit of the label
    partials,  # (parts, 2, B) float32, out: sums of each part, see add_partials
    C,  # classes, in
    H,  # centres of a class, in
    B,  # samples, in
    per_part,  # classes of a part, in
    row_stride,  # of P in elements, in
    column_stride,  # of P in elements, in
    scale_stride,  # in elements, in; 0: one value for all classes
    gamma: tl.float64,  # in
    D: tl.constexpr,  # columns of X and P
    NORMALIZE: tl.constexpr,  # whether rows of P are scaled to length 1
    POOLING: tl.constexpr,  # "none", "max" or "softmax"
    input_precision: tl.constexpr,  # of float32 operands: "ieee", "tf32x3" or "tf32"
    BLOCK_C: tl.constexpr,  # classes a step
    BLOCK_B: tl.constexpr,  # samples a program
    BLOCK_D: tl.constexpr,  # columns of P a step
):
    """Σ exp(logit) over the classes of a part but the label's, for BLOCK_B samples. Products accumulate in float32."""
    part = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    exist = columns < B
    gamma = in_type(gamma, tl.float32)
    begin = part * per_part
    end = tl.minimum(begin + per_part, C)
    own = tl.load(labels + columns, mask=exist, other=-1).to(tl.int32)
    # Whole columns stay for all of the part; longer ones are read again for every tile.
    x = embedding_columns(X, columns, 0, B, D, BLOCK_D)
    operands = (X, x, P, columns, row_stride, column_stride, NORMALIZE, input_precision)

    own_logit = tl.zeros((BLOCK_B,), tl.float32)
    shift = tl.full((BLOCK_C, BLOCK_B), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_C, BLOCK_B), tl.float32)
    for start in range(begin, end, BLOCK_C):
        classes = start + tl.arange(0, BLOCK_C)
        inside = classes < end
        rows = classes.to(tl.int64)
        s = similarity_tile(operands, rows * H, inside, B, D, BLOCK_C, BLOCK_B, BLOCK_D)
        pooled, choice, weights = first_center(s, POOLING)
        if POOLING != "none":
            for h in range(1, H):
                s = similarity_tile(operands, rows * H + h, inside, B, D, BLOCK_C, BLOCK_B, BLOCK_D)
                pooled, choice, weights = add_center(s, h, pooled, choice, weights, gamma, POOLING)
        if POOLING == "softmax":
            pooled = pooled / weights
        slope, offset = slope_and_offset(scale, bias, rows, inside, scale_stride)
        logit = slope[:, None] * pooled + offset[:, None]
        is_own = classes[:, None] == own[None, :]
        own_logit += tl.sum(tl.where(is_own & inside[:, None], logit, 0.0), axis=0)
        shift, total = add_logits(tl.where(is_own, float("-inf"), logit), shift, total)
    tl.store(target + columns, own_logit, mask=exist & (own >= begin) & (own < end))
    store_partial(partials, part.to(tl.int64), columns, B, shift, total)
