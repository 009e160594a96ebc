# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The epilogues between the matrix products: sums over the classes of a chunk, and its gradient in its place."""

import triton
import triton.language as tl

from robustdml_ops.engine.triton.kernels.candidates import in_type
from robustdml_ops.engine.triton.kernels.class_sums import (
    LOWEST,
    add_logits,
    class_lines,
    load_pooled,
    store_partial,
)


@triton.jit(do_not_specialize=["c", "first", "per_part"])
def class_lse(
    S,  # (c, H, B) compute dtype, contiguous, in: similarities
    labels,  # (B,) int64, in
    scale,  # (c,) or () compute dtype, in
    bias,  # (c,) compute dtype, in; None: none
    target,  # (B,) compute dtype, out: logit of the label, where its class is in the chunk
    partials,  # (parts, 2, B) compute dtype, out: sums of each part, see add_partials
    c,  # classes of the chunk, in
    H,  # centres of a class, in
    B,  # samples, in
    first,  # class of the first row, in
    per_part,  # classes of a part, in
    scale_stride,  # in elements, in; 0: one value for all classes
    gamma: tl.float64,  # in
    POOLING: tl.constexpr,  # "none", "max" or "softmax"
    BLOCK_C: tl.constexpr,  # classes a step
    BLOCK_B: tl.constexpr,  # samples a program
):
    """Σ exp(logit) over the classes of a part but the label's, for BLOCK_B samples."""
    part = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    exist = columns < B
    dtype: tl.constexpr = S.dtype.element_ty
    gamma = in_type(gamma, dtype)
    begin = part * per_part
    end = tl.minimum(begin + per_part, c)
    own = (tl.load(labels + columns, mask=exist, other=-1) - first).to(tl.int32)

    # The label's own logit: one look at its row, rather than a search in every tile.
    here = exist & (own >= begin) & (own < end)
    own_row = own.to(tl.int64)
    own_similarity = load_pooled(S + own_row * H * B + columns, here, B, H, gamma, POOLING)[0]
    own_slope, own_offset = class_lines(scale, bias, own_row, here, scale_stride)
    tl.store(target + columns, own_slope * own_similarity + own_offset, mask=here)

    shift = tl.full((BLOCK_C, BLOCK_B), LOWEST, dtype)
    total = tl.zeros((BLOCK_C, BLOCK_B), dtype)
    for start in range(begin, end, BLOCK_C):
        classes = start + tl.arange(0, BLOCK_C)
        rows = classes.to(tl.int64)
        mask = (classes < end)[:, None] & exist[None, :]
        similarity = load_pooled(S + rows[:, None] * H * B + columns[None, :], mask, B, H, gamma, POOLING)[0]
        slope, offset = class_lines(scale, bias, rows, classes < end, scale_stride)
        logit = slope[:, None] * similarity + offset[:, None]
        logit = tl.where(classes[:, None] == own[None, :], float("-inf"), logit)
        shift, total = add_logits(logit, shift, total)
    store_partial(partials, part.to(tl.int64), columns, B, shift, total)


@triton.jit(do_not_specialize=["c", "first"])
def class_lse_backward(
    S,  # (c, H, B) compute dtype, contiguous, in: similarities; out: dL/dS
    labels,  # (B,) int64, in
    scale,  # (c,) or () compute dtype, in
    bias,  # (c,) compute dtype, in; None: none
    lse,  # (B,) compute dtype, in: the whole log-sum-exp; +∞: of an empty sum
    dlse,  # (B,) compute dtype, in: dL/dlse
    dlogit,  # (B,) compute dtype, in: dL/dlogit of the label
    c,  # classes of the chunk, in
    H,  # centres of a class, in
    B,  # samples, in
    first,  # class of the first row, in
    scale_stride,  # in elements, in; 0: one value for all classes
    gamma: tl.float64,  # in
    POOLING: tl.constexpr,  # "none", "max" or "softmax"
    BLOCK_C: tl.constexpr,  # classes a program
    BLOCK_B: tl.constexpr,  # samples a program
):
    """S ← dL/dS."""
    classes = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    columns = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    exist = columns < B
    mask = (classes < c)[:, None] & exist[None, :]
    rows = classes.to(tl.int64)
    gamma = in_type(gamma, S.dtype.element_ty)
    pointers = S + rows[:, None] * H * B + columns[None, :]
    similarity, choice, total = load_pooled(pointers, mask, B, H, gamma, POOLING)
    slope, offset = class_lines(scale, bias, rows, classes < c, scale_stride)
    whole = tl.load(lse + columns, mask=exist, other=0.0)
    softmax = tl.exp(slope[:, None] * similarity + offset[:, None] - whole[None, :])
    own = (tl.load(labels + columns, mask=exist, other=-1) - first).to(tl.int32)
    gradient = tl.where(
        classes[:, None] == own[None, :],
        tl.load(dlogit + columns, mask=exist, other=0.0)[None, :],
        tl.load(dlse + columns, mask=exist, other=0.0)[None, :] * softmax,
    )
    gradient *= slope[:, None]
    if POOLING == "none":
        tl.store(pointers, gradient, mask=mask)
    else:
        for h in range(0, H):
            if POOLING == "max":
                value = tl.where(choice == h, gradient, 0.0)
            else:
                s = tl.load(pointers + h * B, mask=mask, other=0.0)
                weight = tl.exp((s - choice) / gamma) / total
                value = gradient * weight * (1.0 + (s - similarity) / gamma)
            tl.store(pointers + h * B, value, mask=mask)
