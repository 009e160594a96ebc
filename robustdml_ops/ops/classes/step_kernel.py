# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""What a planned softmax step has between its sums and its last two products, in Triton."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type, log_one_plus
from robustdml_ops.engine.rows.kernels import inverse_row_norm
from robustdml_ops.engine.rows.step_kernels import sum_counts
from robustdml_ops.ops.classes.kernels import TERM_UNIT


@triton.jit(do_not_specialize=["B", "classes", "parts", "count_parts"])
def finish_samples(
    partials,  # (parts, 2, B) compute dtype, in: Σ exp(logit) but the label's, without a shift, see class_lse
    target,  # (B,) compute dtype, in: logit of the label, without target_bias
    labels,  # (B,) int64, in: in range
    weights,  # (B,) any floating type or bool, in: of samples; None: 1
    counts,  # (count_parts,) int32, in: parts of the number of samples of positive weight
    X,  # (B, D) any floating type, any strides, in: embeddings
    inverse_norm,  # (B,) compute dtype, in: 1 / |x|
    P,  # (C, D) bfloat16, any strides, in: proxies, multiplied as they are; None: unit rows are
    E,  # (C, B) operand dtype, contiguous, in/out: the labels' elements are written
    factor,  # (B,) compute dtype, out: f / |x|
    weighted,  # (B, D) operand dtype, contiguous, out: f ∘ X, X of length 1
    losses,  # (programs,) float64, out: part of each program's samples in the loss
    B,  # samples, in
    D,  # columns, in
    classes,  # C, in
    parts,  # of partials, in
    count_parts,  # of counts, in
    row_stride,  # of P in elements, in
    column_stride,  # of P in elements, in
    X_row_stride,  # in elements, in
    X_column_stride,  # in elements, in
    scale: tl.float64,  # of cosines in logits, in
    target_bias: tl.float64,  # in
    most: tl.float64,  # in: see sweep.largest_sum
    EXCLUDE: tl.constexpr,  # whether the sum leaves the label out
    BLOCK_R: tl.constexpr,  # samples a program
    BLOCK_D: tl.constexpr,  # columns a step
    BLOCK_P: tl.constexpr,  # parts a step
):
    """Losses log Σ exp(logit) − target, times weight over their number; terms as :func:`.sweep.complete` does."""
    program = tl.program_id(0)
    r = program * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < B
    r = r.to(tl.int64)
    dtype: tl.constexpr = factor.dtype.element_ty
    total = tl.zeros((BLOCK_R,), tl.float64)
    for start in range(0, parts, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        mask = (part < parts)[:, None] & inside[None, :]
        place = partials + part.to(tl.int64)[:, None] * 2 * B + B + r[None, :]
        total += tl.sum(tl.load(place, mask=mask, other=0.0).to(tl.float64), axis=0)
    empty = total == 0.0
    others = tl.where(empty, float("-inf"), tl.log(tl.where(empty, 1.0, total)))
    own = tl.load(target + r, mask=inside, other=0.0).to(tl.float64) + in_type(target_bias, tl.float64)
    above = tl.where(inside, others - own, 0.0)
    if EXCLUDE:
        # A sample without another class has no loss and no gradient.
        loss = tl.where(empty, 0.0, above)
        whole = tl.where(empty, float("inf"), others)
        share = tl.where(empty, 0.0, 1.0)
    else:
        e = tl.exp(-tl.abs(above))
        loss = tl.where(above > 0.0, above, 0.0) + log_one_plus(e)
        loss = tl.where(above != above, above, loss)
        whole = own + loss
        share = tl.where(above > 0.0, 1.0, e) / (1.0 + e)
    weight = tl.full((BLOCK_R,), 1.0, tl.float64)
    if weights is not None:
        weight = tl.load(weights + r, mask=inside, other=0).to(dtype).to(tl.float64)
    weight = weight / sum_counts(counts, count_parts, 256).to(tl.float64)
    tl.store(losses + program, tl.sum(tl.where(inside, weight * loss, 0.0), axis=0))

    # dL/dlogit = weight · exp(logit − whole) of the others, −weight · share of the label.
    of_label = (-weight * share).to(dtype)
    whole = whole.to(dtype)
    f = weight.to(dtype) * (1 / TERM_UNIT) * tl.exp(-whole)
    least = tl.abs(of_label) * (1 / TERM_UNIT) * tl.exp(-tl.minimum(whole, in_type(most, dtype))) * 2.0**-24
    f = tl.where(tl.abs(f) < least, least, f)
    inverse = tl.load(inverse_norm + r, mask=inside, other=0.0)
    tl.store(factor + r, f * inverse, mask=inside)
    label = tl.load(labels + r, mask=inside, other=-1)
    here = (label >= 0) & (label < classes)  # the first kernel of the step has an assertion
    value = of_label / tl.where(f == 0.0, 1.0, f) * in_type(scale, dtype)
    if P is not None:
        value *= inverse_row_norm(P + label * row_stride, here, D, column_stride, dtype, BLOCK_R, BLOCK_D)
    tl.store(E + label * B + r, value, mask=here)

    for start in range(0, D, BLOCK_D):
        d = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[None, :]
        mask = inside[:, None] & (d < D)
        x = tl.load(X + r[:, None] * X_row_stride + d * X_column_stride, mask=mask, other=0.0).to(dtype)
        # Of length 1 first: either factor alone may be far from 1.
        tl.store(weighted + r[:, None] * D + d, x * inverse[:, None] * f[:, None], mask=mask)
