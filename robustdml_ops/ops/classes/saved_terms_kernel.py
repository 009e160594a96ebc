# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The last step of the saved terms in Triton: the labels' elements, and the factors of the samples."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type
from robustdml_ops.engine.rows.kernels import inverse_row_norm
from robustdml_ops.ops.classes.kernels import TERM_UNIT


@triton.jit(do_not_specialize=["classes", "B"])
def complete_terms(
    E,  # (C, B) operand dtype, contiguous, in/out: the labels' elements are written
    P,  # (C, D) bfloat16, any strides, in: proxies, multiplied as they are; None: unit rows are
    selected,  # (M,) int64, in: rows of P that the classes are; None: all
    X,  # (B, D) any floating type, any strides, in: embeddings
    inverse_norm,  # (B,) compute dtype, in: 1 / |x|
    labels,  # (B,) int64, in; outside 0 … C − 1: the class is elsewhere
    scale,  # () compute dtype, in
    lse,  # (B,) compute dtype, in: the whole log-sum-exp; +∞: of an empty sum
    dlse,  # (B,) compute dtype, in: dL/dlse
    dlogit,  # (B,) compute dtype, in: dL/dlogit of the label
    factor,  # (B,) compute dtype, out: f / |x|
    weighted,  # (B, D) operand dtype, contiguous, out: f ∘ X, X of length 1
    classes,  # C, in
    B,  # samples, in
    D,  # columns, in
    row_stride,  # of P in elements, in
    column_stride,  # of P in elements, in
    X_row_stride,  # in elements, in
    X_column_stride,  # in elements, in
    most: tl.float64,  # in: see sweep.largest_sum
    BLOCK_R: tl.constexpr,  # samples a program
    BLOCK_D: tl.constexpr,  # columns a step
):
    """See :func:`robustdml_ops.ops.classes.sweep.complete`."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < B
    r = r.to(tl.int64)
    dtype: tl.constexpr = factor.dtype.element_ty
    inverse = tl.load(inverse_norm + r, mask=inside, other=0.0)
    whole = tl.load(lse + r, mask=inside, other=0.0)
    of_label = tl.load(dlogit + r, mask=inside, other=0.0)
    f = tl.load(dlse + r, mask=inside, other=0.0) * (1 / TERM_UNIT) * tl.exp(-whole)
    least = tl.abs(of_label) * (1 / TERM_UNIT) * tl.exp(-tl.minimum(whole, in_type(most, dtype))) * 2.0**-24
    f = tl.where(tl.abs(f) < least, least, f)
    tl.store(factor + r, f * inverse, mask=inside)

    label = tl.load(labels + r, mask=inside, other=-1)
    here = (label >= 0) & (label < classes)
    own = of_label / tl.where(f == 0.0, 1.0, f) * tl.load(scale)
    if P is not None:
        row = label
        if selected is not None:
            row = tl.load(selected + label, mask=here, other=0)
        own *= inverse_row_norm(P + row * row_stride, here, D, column_stride, dtype, BLOCK_R, BLOCK_D)
    tl.store(E + label * B + r, own, mask=here)

    for start in range(0, D, BLOCK_D):
        d = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[None, :]
        mask = inside[:, None] & (d < D)
        x = tl.load(X + r[:, None] * X_row_stride + d * X_column_stride, mask=mask, other=0.0).to(dtype)
        # Of length 1 first: either factor alone may be far from 1.
        tl.store(weighted + r[:, None] * D + d, x * inverse[:, None] * f[:, None], mask=mask)
