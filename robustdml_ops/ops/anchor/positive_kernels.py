# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Positives of Proxy-Anchor beside the fused kernel: one for each sample, whose sums are over samples of its class."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type, log_one_plus
from robustdml_ops.engine.rows.step_kernels import sum_counts


@triton.jit(do_not_specialize=["c", "first", "first_place", "parts", "classes"])
def positive_terms(
    E,  # (c, B) operand dtype, contiguous, in/out: terms, of which those of the labels are written
    sums,  # (c,) float32, in: Σ exp over the negatives of a class
    target,  # (B,) float32, in: α · cosine with the label's proxy
    labels,  # (B,) int64, in
    bias,  # (B,) float32, in: −∞: without the sample; None: with all
    counts,  # (parts,) int32, in: parts of |P⁺|
    totals,  # (all programs,) float64, out: Σ log(1 + Σ⁺) / |P⁺| over classes of the chunk that begin in the program
    c,  # classes of the chunk, in
    B,  # samples, in
    first,  # class of the first row, in
    first_place,  # of the chunk's programs in totals, in
    parts,  # of counts, in
    classes,  # |P|, in
    height: tl.float64,  # e^(α · margin), in
    BLOCK_R: tl.constexpr,  # samples a program
    BLOCK_B: tl.constexpr,  # samples a step
):
    """Terms of positives, by which dL/dS has the factor of the negatives of its class."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    y = tl.load(labels + rows, mask=rows < B, other=-1)
    present = rows < B
    if bias is not None:
        present &= tl.load(bias + rows, mask=present, other=0.0) == 0.0
    tall = in_type(height, tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    earlier = tl.zeros((BLOCK_R,), tl.int32)
    for start in range(0, B, BLOCK_B):
        j = start + tl.arange(0, BLOCK_B)
        other = tl.load(labels + j, mask=j < B, other=-2)
        if bias is not None:
            other = tl.where(tl.load(bias + j, mask=j < B, other=0.0) == 0.0, other, -2)
        same = other[None, :] == y[:, None]
        e = tall * tl.exp(-tl.load(target + j, mask=j < B, other=0.0))
        total += tl.sum(tl.where(same, e[None, :], 0.0), axis=1)
        earlier += tl.sum((same & (j[None, :] < rows[:, None])).to(tl.int32), axis=1)
    here = present & (y >= first) & (y < first + c)
    place = (tl.where(here, y, first) - first).to(tl.int64)
    count = sum_counts(counts, parts, BLOCK_B).to(tl.float32)
    e = tall * tl.exp(-tl.load(target + rows, mask=present, other=0.0))
    # dL/dlse of both sides, and the divisor of the negatives' terms.
    negatives = (1.0 + tall * tl.load(sums + place, mask=here, other=0.0)) / tall
    value = -(classes / count) * negatives * (e / (1.0 + total))
    tl.store(E + place * B + rows, value.to(E.dtype.element_ty), mask=here)
    logs = tl.where(here & (earlier == 0), log_one_plus(total), 0.0).to(tl.float64)
    tl.store(totals + first_place + tl.program_id(0), tl.sum(logs, axis=0) / count.to(tl.float64))
