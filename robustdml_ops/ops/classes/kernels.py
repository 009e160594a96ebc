# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The class log-sum-exp in Triton: two epilogues between the matrix products, and all of the sums in one launch."""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type
from robustdml_ops.engine.rows.kernels import embedding_columns, unit_rows
from robustdml_ops.ops.classes.sample_kernels import (
    LOWEST,
    TERM_UNIT,
    add_logits,
    add_seen,
    are_labels,
    load_places,
    store_partial,
    store_seen,
)


@triton.jit
def add_center(
    value,  # similarities with centre h, in
    h,  # number of the centre, in
    pooled,  # max: the largest so far; softmax: Σ weight · s so far, in
    choice,  # max: its number; softmax: the largest s so far, in
    total,  # softmax: Σ weight so far, in
    gamma,  # compute dtype, in
    POOLING: tl.constexpr,
):
    """``pooled``, ``choice`` and ``total`` after one more centre; weight = exp((s − largest) / gamma)."""
    if POOLING == "max":
        # The first of equal ones; and a NaN, once met, stays.
        keep = (value <= pooled) | (pooled != pooled)
        choice = tl.where(keep, choice, h)
        pooled = tl.where(keep, pooled, value)
    else:
        above = value - choice
        e = tl.exp(-tl.abs(above) / gamma)
        larger = above > 0.0
        total = tl.where(larger, total * e + 1.0, total + e)
        pooled = tl.where(larger, pooled * e + value, pooled + e * value)
        choice = tl.where(larger, value, choice)
    return pooled, choice, total


@triton.jit
def first_center(
    value,  # similarities with centre 0, in
    POOLING: tl.constexpr,
):
    """The first arguments of :func:`add_center`."""
    choice = tl.zeros_like(value) if POOLING == "max" else value
    return value, choice, tl.full(value.shape, 1.0, value.dtype)


@triton.jit
def load_similarity(
    pointers,  # addresses, in
    mask,  # bool, in: which exist
    norms,  # in: 1 / |v| of all rows, or None: S holds similarities; places of centre 0 there, and which exist
    h,  # number of the centre, in
):
    """Similarities, 0 where there is none."""
    value = tl.load(pointers, mask=mask, other=0.0)
    if norms[0] is not None:
        value *= tl.load(norms[0] + norms[1] + h, mask=norms[2], other=0.0)
    return value


@triton.jit
def load_pooled(
    pointers,  # addresses of the similarities with centre 0, in
    mask,  # bool, in: which exist
    norms,  # in: see load_similarity
    center_stride,  # from one centre to the next in elements, in
    H,  # centres of a class, in
    gamma,  # compute dtype, in
    POOLING: tl.constexpr,  # "none", "max" or "softmax"
):
    """Similarities with whole classes, and ``choice`` and ``total`` as :func:`add_center` has them."""
    pooled, choice, total = first_center(load_similarity(pointers, mask, norms, 0), POOLING)
    if POOLING != "none":
        for h in range(1, H):
            value = load_similarity(pointers + h * center_stride, mask, norms, h)
            pooled, choice, total = add_center(value, h, pooled, choice, total, gamma, POOLING)
    if POOLING == "softmax":
        pooled = pooled / total
    return pooled, choice, total


@triton.jit
def slope_and_offset(
    scale,  # addresses of (C,) or () compute dtype, or one number for all classes, in
    bias,  # (C,) compute dtype, in; None: none
    rows,  # int64, in: classes
    inside,  # bool, in: which exist
    scale_stride,  # in elements, in; 0: one value for all classes
):
    """Slope and offset of a class's logit as a function of its similarity; −∞ for classes that don't exist."""
    if scale.dtype.is_ptr():
        slope = tl.load(scale + rows * scale_stride, mask=inside, other=0.0)
    else:
        slope = tl.zeros(rows.shape, scale.dtype) + scale
    offset = tl.zeros_like(slope)
    if bias is not None:
        offset = tl.load(bias + rows, mask=inside, other=0.0)
    return slope, tl.where(inside, offset, float("-inf"))


@triton.jit(do_not_specialize=["c", "first", "per_part", "first_part"])
def class_lse(
    S,  # (c, H, B) compute dtype, contiguous, in: similarities, or V·x
    inverse_norm,  # (c, H) compute dtype, in: 1 / |v|; None: S holds similarities
    labels,  # (B, K) int64, in
    scale,  # (c,) or () compute dtype, in; None: scale_number
    bias,  # (c,) compute dtype, in; None: none
    drop_similar_negatives,  # (B,) compute dtype, in: limits of other classes than the label; None: none
    logit_weights,  # (c,) compute dtype, in: of a sum of the logits; None: no such sum
    target,  # (B, K) compute dtype, out: logits of the labels, where their classes are in the chunk
    partials,  # (all parts, 2, B) compute dtype, out: sums of each part, see add_partials
    weighted,  # (all parts, B) compute dtype, out: Σ logit_weights · logit of each part, without the labels; or None
    own_similarities,  # (B,) compute dtype, in: with the own class; None: other classes are not seen
    nearest,  # (all parts, B) compute dtype, out: largest similarity with another class of each part
    above,  # (all parts, B) int32, out: other classes of each part that are more similar than the own one
    E,  # (c, B) operand dtype, contiguous, out: terms, see sweep.class_lse, 0 at labels; None: no bound is known
    c,  # classes of the chunk, in
    H,  # centres of a class, in
    B,  # samples, in
    K,  # labels of a sample, in
    first,  # class of the first row, in
    per_part,  # classes of a part, in
    first_part,  # place of the chunk's first part in partials, in
    scale_stride,  # in elements, in; 0: one value for all classes
    gamma: tl.float64,  # in
    scale_number: tl.float64,  # in
    POOLING: tl.constexpr,  # "none", "max" or "softmax"
    BLOCK_C: tl.constexpr,  # classes a step
    BLOCK_B: tl.constexpr,  # samples a program
):
    """Σ exp(logit) over the classes of a part but the labels', for BLOCK_B samples."""
    part = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    exist = columns < B
    dtype: tl.constexpr = S.dtype.element_ty
    gamma = in_type(gamma, dtype)
    if scale is None:
        scale = in_type(scale_number, dtype)
    begin = part * per_part
    end = tl.minimum(begin + per_part, c)

    # The labels' own logits: one look at each row, rather than a search in every tile.
    for j in range(0, K):
        label = load_places(labels + columns * K + j, exist, first)
        here = exist & (label >= begin) & (label < end)
        own_row = label.to(tl.int64)
        own_norms = (inverse_norm, own_row * H, here)
        own_similarity = load_pooled(S + own_row * H * B + columns, here, own_norms, B, H, gamma, POOLING)[0]
        own_slope, own_offset = slope_and_offset(scale, bias, own_row, here, scale_stride)
        tl.store(target + columns * K + j, own_slope * own_similarity + own_offset, mask=here)

    own = load_places(labels + columns * K, exist, first)
    if drop_similar_negatives is not None:
        limits = tl.load(drop_similar_negatives + columns, mask=exist, other=0.0)
    shift = tl.full((BLOCK_C, BLOCK_B), LOWEST if E is None else 0.0, dtype)
    total = tl.zeros((BLOCK_C, BLOCK_B), dtype)
    logits = tl.zeros((BLOCK_C, BLOCK_B), dtype)
    largest = tl.full((BLOCK_C, BLOCK_B), float("-inf"), dtype)
    number = tl.zeros((BLOCK_C, BLOCK_B), tl.int32)
    if own_similarities is not None:
        of_own = tl.load(own_similarities + columns, mask=exist, other=float("inf"))
    for start in range(begin, end, BLOCK_C):
        classes = start + tl.arange(0, BLOCK_C)
        rows = classes.to(tl.int64)
        mask = (classes < end)[:, None] & exist[None, :]
        norms = (inverse_norm, (rows * H)[:, None], (classes < end)[:, None])
        similarity = load_pooled(S + rows[:, None] * H * B + columns[None, :], mask, norms, B, H, gamma, POOLING)[0]
        slope, offset = slope_and_offset(scale, bias, rows, classes < end, scale_stride)
        logit = slope[:, None] * similarity + offset[:, None]
        of_label = are_labels(classes, own, labels, columns, exist, first, K)
        if logit_weights is not None:
            weight = tl.load(logit_weights + rows, mask=classes < end, other=0.0)
            logits += tl.where(of_label | (classes >= end)[:, None], 0.0, weight[:, None] * logit)
        logit = tl.where(of_label, float("-inf"), logit)
        if drop_similar_negatives is not None:
            logit = tl.where(similarity > limits[None, :], float("-inf"), logit)
        if own_similarities is not None:
            largest, number = add_seen(similarity, logit, of_own, largest, number)
        if E is None:
            shift, total = add_logits(logit, shift, total)
        else:
            e = tl.exp(logit)
            total += e
            if inverse_norm is not None:
                slope *= tl.load(inverse_norm + rows, mask=classes < end, other=0.0)
            unit: tl.constexpr = TERM_UNIT if E.dtype.element_ty.primitive_bitwidth < 32 else 1.0
            tl.store(E + rows[:, None] * B + columns[None, :], e * (slope * unit)[:, None], mask=mask)
    place = first_part + part.to(tl.int64)
    store_partial(partials, place, columns, B, shift, total)
    if logit_weights is not None:
        tl.store(weighted + place * B + columns, tl.sum(logits, axis=0), mask=exist)
    if own_similarities is not None:
        store_seen(nearest, above, place * B + columns, exist, largest, number)


@triton.jit(do_not_specialize=["c", "first"])
def class_lse_backward(
    S,  # (c, H, B) compute dtype, contiguous, in: similarities, or V·x
    dS,  # (c, H, B) compute or operand dtype, contiguous, out: dL/dS; may be S
    inverse_norm,  # (c, H) compute dtype, in: 1 / |v|, and dS is dL/d(V·x); None: S holds similarities
    labels,  # (B, K) int64, in
    scale,  # (c,) or () compute dtype, in
    bias,  # (c,) compute dtype, in; None: none
    drop_similar_negatives,  # (B,) compute dtype, in: limits of other classes than the label; None: none
    logit_weights,  # (c,) compute dtype, in: of a sum of the logits; None: no such sum
    lse,  # (B,) compute dtype, in: the whole log-sum-exp; +∞: of an empty sum
    dlse,  # (B,) compute dtype, in: dL/dlse
    dlogit,  # (B, K) compute dtype, in: dL/dlogit of the labels
    dweighted,  # (B,) compute dtype, in: dL/d(sum of the logits by logit_weights); None: no such sum
    c,  # classes of the chunk, in
    H,  # centres of a class, in
    B,  # samples, in
    K,  # labels of a sample, in
    first,  # class of the first row, in
    scale_stride,  # in elements, in; 0: one value for all classes
    gamma: tl.float64,  # in
    POOLING: tl.constexpr,  # "none", "max" or "softmax"
    BLOCK_C: tl.constexpr,  # classes a program
    BLOCK_B: tl.constexpr,  # samples a program
):
    """dL/dS."""
    classes = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = classes < c
    rows = classes.to(tl.int64)
    dtype: tl.constexpr = S.dtype.element_ty
    gamma = in_type(gamma, dtype)
    slope, offset = slope_and_offset(scale, bias, rows, inside, scale_stride)
    if dweighted is not None:
        logit_weight = tl.load(logit_weights + rows, mask=inside, other=0.0)
    norms = (inverse_norm, (rows * H)[:, None], inside[:, None])
    columns = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    exist = columns < B
    mask = inside[:, None] & exist[None, :]
    places = rows[:, None] * H * B + columns[None, :]
    similarity, choice, total = load_pooled(S + places, mask, norms, B, H, gamma, POOLING)
    whole = tl.load(lse + columns, mask=exist, other=0.0)
    softmax = tl.exp(slope[:, None] * similarity + offset[:, None] - whole[None, :])
    gradient = tl.load(dlse + columns, mask=exist, other=0.0)[None, :] * softmax
    if drop_similar_negatives is not None:
        limits = tl.load(drop_similar_negatives + columns, mask=exist, other=0.0)
        gradient = tl.where(similarity > limits[None, :], 0.0, gradient)
    if dweighted is not None:
        gradient += logit_weight[:, None] * tl.load(dweighted + columns, mask=exist, other=0.0)[None, :]
    for j in range(0, K):
        label = load_places(labels + columns * K + j, exist, first)
        of_label = tl.load(dlogit + columns * K + j, mask=exist, other=0.0)
        gradient = tl.where(classes[:, None] == label[None, :], of_label[None, :], gradient)
    gradient *= slope[:, None]
    for h in range(0, H):
        value = gradient
        if POOLING == "max":
            value = tl.where(choice == h, gradient, 0.0)
        elif POOLING == "softmax":
            s = load_similarity(S + places + h * B, mask, norms, h)
            weight = tl.exp((s - choice) / gamma) / total
            value = gradient * weight * (1.0 + (s - similarity) / gamma)
        if inverse_norm is not None:
            value *= tl.load(inverse_norm + (rows * H + h)[:, None], mask=inside[:, None], other=0.0)
        tl.store(dS + places + h * B, value, mask=mask)


# ``operands`` of similarity_tile: X, x (BLOCK_D, BLOCK_B), whole columns of Xᵀ where D ≤ BLOCK_D, P, inverse_norm,
# columns (BLOCK_B,) int32, row_stride, and column_stride, as fused_class_lse has them.


@triton.jit
def similarity_tile(
    operands,  # in: see above
    rows,  # (BLOCK_C,) int64, in: rows of P
    inside,  # (BLOCK_C,) bool, in: which exist
    B,  # samples in all, in
    D: tl.constexpr,  # columns of X and P
    input_precision: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """S (BLOCK_C, BLOCK_B) float32."""
    X, x, P, inverse_norm, columns, row_stride, column_stride = operands
    p_rows = P + rows * row_stride
    operand: tl.constexpr = X.dtype.element_ty
    # As in the sweep: rows of bfloat16 are multiplied as they are.
    AS_THEY_ARE: tl.constexpr = P.dtype.element_ty == tl.bfloat16 and operand == tl.bfloat16
    inverse = tl.full((BLOCK_C,), 1.0, tl.float32)
    if inverse_norm is not None:
        inverse = tl.load(inverse_norm + rows, mask=inside, other=0.0)
    before = None if AS_THEY_ARE else inverse
    if D <= BLOCK_D:
        u = unit_rows(p_rows, inside, before, 0, D, column_stride, operand, BLOCK_D)
        s = tl.dot(u, x, input_precision=input_precision)
    else:
        s = tl.zeros((BLOCK_C, BLOCK_B), dtype=tl.float32)
        for start in range(0, D, BLOCK_D):
            u = unit_rows(p_rows, inside, before, start, D, column_stride, operand, BLOCK_D)
            x = embedding_columns(X, columns, start, B, D, BLOCK_D)
            s = tl.dot(u, x, s, input_precision=input_precision)
    if AS_THEY_ARE:
        s *= inverse[:, None]
    return s


@triton.jit(do_not_specialize=["per_part"])
def fused_class_lse(
    X,  # (B, D) operand dtype, contiguous, in: unit embeddings
    P,  # (C·H, D) any floating type, any strides, in: proxies
    inverse_norm,  # (C·H,) float32, in: 1 / |p|; None: proxies are not normalised
    labels,  # (B,) int64, in
    scale,  # (C,) or () float32, in
    bias,  # (C,) float32, in; None: none
    drop_similar_negatives,  # (B,) float32, in: a class that is more similar and no label is left out; None: none is
    logit_weights,  # (C,) float32, in: of a sum of the logits; None: no such sum
    target,  # (B,) float32, out: logit of the label
    partials,  # (parts, 2, B) float32, out: sums of each part, see add_partials
    weighted,  # (parts, B) float32, out: Σ logit_weights · logit of each part, without the label; or None
    own_similarities,  # (B,) float32, in: with the own class; None: other classes are not seen
    nearest,  # (parts, B) float32, out: largest similarity with another class of each part
    above,  # (parts, B) int32, out: other classes of each part that are more similar than the own one
    C,  # classes, in
    H,  # centres of a class, in
    B,  # samples, in
    per_part,  # classes of a part, in
    row_stride,  # of P in elements, in
    column_stride,  # of P in elements, in
    scale_stride,  # in elements, in; 0: one value for all classes
    gamma: tl.float64,  # in
    D: tl.constexpr,  # columns of X and P
    POOLING: tl.constexpr,  # "none", "max" or "softmax"
    input_precision: tl.constexpr,  # of float32 operands: "ieee" or "tf32"
    BLOCK_C: tl.constexpr,  # classes a step
    BLOCK_B: tl.constexpr,  # samples a program
    BLOCK_D: tl.constexpr,  # columns of P a step
):
    """As :func:`class_lse`, from embeddings and proxies: neither cosines nor unit proxies are written."""
    part = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    exist = columns < B
    gamma = in_type(gamma, tl.float32)
    begin = part * per_part
    end = tl.minimum(begin + per_part, C)
    own = load_places(labels + columns, exist, 0)
    if drop_similar_negatives is not None:
        limits = tl.load(drop_similar_negatives + columns, mask=exist, other=0.0)
    # Whole columns stay for all of the part; longer ones are read again for every tile.
    x = embedding_columns(X, columns, 0, B, D, BLOCK_D)
    operands = (X, x, P, inverse_norm, columns, row_stride, column_stride)

    own_logit = tl.zeros((BLOCK_B,), tl.float32)
    shift = tl.full((BLOCK_C, BLOCK_B), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_C, BLOCK_B), tl.float32)
    logits = tl.zeros((BLOCK_C, BLOCK_B), tl.float32)
    largest = tl.full((BLOCK_C, BLOCK_B), float("-inf"), tl.float32)
    number = tl.zeros((BLOCK_C, BLOCK_B), tl.int32)
    if own_similarities is not None:
        of_own = tl.load(own_similarities + columns, mask=exist, other=float("inf"))
    for start in range(begin, end, BLOCK_C):
        classes = start + tl.arange(0, BLOCK_C)
        inside = classes < end
        rows = classes.to(tl.int64)
        s = similarity_tile(operands, rows * H, inside, B, D, input_precision, BLOCK_C, BLOCK_B, BLOCK_D)
        pooled, choice, weights = first_center(s, POOLING)
        if POOLING != "none":
            for h in range(1, H):
                s = similarity_tile(operands, rows * H + h, inside, B, D, input_precision, BLOCK_C, BLOCK_B, BLOCK_D)
                pooled, choice, weights = add_center(s, h, pooled, choice, weights, gamma, POOLING)
        if POOLING == "softmax":
            pooled = pooled / weights
        slope, offset = slope_and_offset(scale, bias, rows, inside, scale_stride)
        logit = slope[:, None] * pooled + offset[:, None]
        is_own = classes[:, None] == own[None, :]
        own_logit += tl.sum(tl.where(is_own & inside[:, None], logit, 0.0), axis=0)
        if logit_weights is not None:
            weight = tl.load(logit_weights + rows, mask=inside, other=0.0)
            logits += tl.where(is_own | (~inside)[:, None], 0.0, weight[:, None] * logit)
        logit = tl.where(is_own, float("-inf"), logit)
        if drop_similar_negatives is not None:
            logit = tl.where(pooled > limits[None, :], float("-inf"), logit)
        if own_similarities is not None:
            largest, number = add_seen(pooled, logit, of_own, largest, number)
        shift, total = add_logits(logit, shift, total)
    tl.store(target + columns, own_logit, mask=exist & (own >= begin) & (own < end))
    store_partial(partials, part.to(tl.int64), columns, B, shift, total)
    if logit_weights is not None:
        tl.store(weighted + part.to(tl.int64) * B + columns, tl.sum(logits, axis=0), mask=exist)
    if own_similarities is not None:
        store_seen(nearest, above, part.to(tl.int64) * B + columns, exist, largest, number)
