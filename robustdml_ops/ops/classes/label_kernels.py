# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton: the labels' part in the gradient of the proxies."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["B", "first", "n"])
def add_labels(
    G,  # (n, D) compute dtype, any strides, in/out: E·(f ∘ X) of the classes from first on
    E,  # (n, B) operand dtype, contiguous, in: their terms
    weighted,  # (B, D) operand dtype, contiguous, in: f ∘ X
    X,  # (B, D) any floating type, any strides, in: embeddings
    labels,  # (B,) int64, in
    inverse_norm,  # (B,) compute dtype, in: 1 / |x|
    slopes,  # (B,) compute dtype, in: dL/ds of the labels, with the factor 1 / |p| where P is multiplied as it is
    B,  # samples, in
    D,  # columns, in
    first,  # class of the first row, in
    n,  # classes, in
    G_row_stride,  # in elements, in
    G_column_stride,  # in elements, in
    X_row_stride,  # in elements, in
    X_column_stride,  # in elements, in
    BLOCK_B: tl.constexpr,  # samples a step
    BLOCK_D: tl.constexpr,  # columns a program
):
    """The labels' part of G without rounded factors: near its samples a proxy has hardly any other.

    A program adds all samples of the class of sample ``r``, if r is the first of them: the same bits every time.
    """
    r = tl.program_id(0)
    dtype: tl.constexpr = G.dtype.element_ty
    row = tl.load(labels + r) - first
    if (row >= 0) & (row < n):
        d = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)).to(tl.int64)[None, :]
        total = tl.zeros((BLOCK_B, BLOCK_D), dtype)
        before = tl.zeros((BLOCK_B,), tl.int32)
        for start in range(0, B, BLOCK_B):
            j = (start + tl.arange(0, BLOCK_B)).to(tl.int64)
            same = tl.load(labels + j, mask=j < B, other=-1) == row + first
            before += (same & (j < r)).to(tl.int32)
            if tl.max(same.to(tl.int32)) > 0:
                mask = same[:, None] & (d < D)
                slope = tl.load(slopes + j, mask=same, other=0.0)[:, None]
                inverse = tl.load(inverse_norm + j, mask=same, other=0.0)[:, None]
                x = tl.load(X + j[:, None] * X_row_stride + d * X_column_stride, mask=mask, other=0.0).to(dtype)
                e = tl.load(E + row * B + j, mask=same, other=0.0).to(dtype)[:, None]
                w = tl.load(weighted + j[:, None] * D + d, mask=mask, other=0.0).to(dtype)
                total += slope * (x * inverse) - e * w
        if tl.sum(before) == 0:
            place = G + row * G_row_stride + d * G_column_stride
            g = tl.load(place, mask=d < D, other=0.0)
            tl.store(place, g + tl.sum(total, axis=0)[None, :], mask=d < D)
