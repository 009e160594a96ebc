# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Labels, sums of parts, and what a sample has between its sum over the classes and its gradient, in Triton.

In a sum over parts of the classes every thread keeps a sum and a shift of its own for each place of its tile; they meet
once, at the end, so that a step over the classes waits for no other thread.
"""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type, log_one_plus
from robustdml_ops.engine.rows.kernels import inverse_row_norm
from robustdml_ops.engine.rows.step_kernels import sum_counts
from robustdml_ops.ops.classes.sweep import TERM_UNIT as _TERM_UNIT

TERM_UNIT = tl.constexpr(_TERM_UNIT)

# Where a shift starts: finite, so that the logit −∞ of a masked class never meets a shift of −∞.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def load_places(
    labels,  # addresses, int64, in
    exist,  # bool, in: which there are
    first,  # class of the chunk's first row, in
):
    """Places of labels in a chunk, int32: negative or beyond any chunk for ABSENT, ELSEWHERE and other classes."""
    label = tl.load(labels, mask=exist, other=-1)
    # The difference of ABSENT and a class has no place in 64 bits, and others have none in 32.
    return tl.where(label < first, -1, tl.minimum(label - first, 2147483647)).to(tl.int32)


@triton.jit
def are_labels(
    classes,  # (BLOCK_C,) int, in: counted from the chunk's first
    own,  # (BLOCK_B,) int32, in: the first label of each sample, counted so
    labels,  # (B, K) int64, in
    columns,  # (BLOCK_B,) int32, in: samples
    exist,  # (BLOCK_B,) bool, in: which exist
    first,  # class of the chunk's first row, in
    K,  # labels of a sample, in
):
    """Which classes are labels of which samples, (BLOCK_C, BLOCK_B)."""
    found = classes[:, None] == own[None, :]
    for j in range(1, K):
        other = load_places(labels + columns * K + j, exist, first)
        found |= classes[:, None] == other[None, :]
    return found


@triton.jit
def add_logits(
    logit,  # (BLOCK_C, BLOCK_B) compute dtype, in; −∞ where there is none
    shift,  # (BLOCK_C, BLOCK_B) compute dtype, in: largest logit so far of each place
    total,  # (BLOCK_C, BLOCK_B) compute dtype, in: Σ exp(logit − shift) so far
):
    """``shift`` and ``total`` after a tile: one exponential scales the new term, or all the terms before it."""
    above = logit - shift
    e = tl.exp(-tl.abs(above))
    larger = above > 0.0
    return tl.where(larger, logit, shift), tl.where(larger, total * e + 1.0, total + e)


@triton.jit
def add_seen(
    similarity,  # (BLOCK_C, BLOCK_B) compute dtype, in
    logit,  # (BLOCK_C, BLOCK_B) compute dtype, in: −∞ for labels and classes that do not count
    own,  # (BLOCK_B,) compute dtype, in: similarities with the own class
    largest,  # (BLOCK_C, BLOCK_B) compute dtype, in: largest similarity so far of each place
    number,  # (BLOCK_C, BLOCK_B) int32, in: similarities above ``own`` so far
):
    """``largest`` and ``number`` after a tile."""
    counted = tl.where(logit > float("-inf"), similarity, float("-inf"))
    return tl.maximum(largest, counted), number + (counted > own[None, :]).to(tl.int32)


@triton.jit
def store_seen(
    nearest,  # (parts, B) compute dtype, out
    above,  # (parts, B) int32, out
    places,  # (BLOCK_B,) int64, in: of this part's samples
    exist,  # (BLOCK_B,) bool, in
    largest,  # (BLOCK_C, BLOCK_B) compute dtype, in
    number,  # (BLOCK_C, BLOCK_B) int32, in
):
    """What this part of the classes has seen."""
    tl.store(nearest + places, tl.max(largest, axis=0), mask=exist)
    tl.store(above + places, tl.sum(number, axis=0), mask=exist)


@triton.jit
def store_partial(
    partials,  # (parts, 2, B) compute dtype, out
    part,  # int64, in
    columns,  # (BLOCK_B,) int32, in: samples
    B,  # samples in all, in
    shift,  # (BLOCK_C, BLOCK_B) compute dtype, in
    total,  # (BLOCK_C, BLOCK_B) compute dtype, in
):
    """Largest logit and Σ exp(logit − largest) of this part of the classes."""
    largest = tl.max(shift, axis=0)
    summed = tl.sum(total * tl.exp(shift - largest[None, :]), axis=0)
    place = partials + part * 2 * B + columns
    tl.store(place, largest, mask=columns < B)
    tl.store(place + B, summed, mask=columns < B)


@triton.jit(do_not_specialize=["parts"])
def add_partials(
    partials,  # (parts, 2, B) compute dtype, in
    shift,  # (B,) float64, in/out: largest logit so far; −∞ before the first chunk
    total,  # (B,) float64, in/out: Σ exp(logit − shift) so far
    parts,  # in
    B,  # samples, in
    BLOCK_P: tl.constexpr,  # parts a step
    BLOCK_B: tl.constexpr,  # samples a program
):
    """Add all parts to the running sums, in an order that never changes: the same bits every time."""
    columns = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    before = tl.load(shift + columns, mask=columns < B, other=0.0)
    summed = tl.load(total + columns, mask=columns < B, other=0.0)
    for first in range(0, parts, BLOCK_P):
        part = first + tl.arange(0, BLOCK_P)
        mask = (part < parts)[:, None] & (columns < B)[None, :]
        place = partials + part.to(tl.int64)[:, None] * 2 * B + columns[None, :]
        part_shift = tl.load(place, mask=mask, other=LOWEST)
        part_total = tl.load(place + B, mask=mask, other=0.0)
        largest = tl.maximum(before, tl.max(part_shift, axis=0).to(tl.float64))
        terms = part_total * tl.exp(part_shift - largest.to(part_shift.dtype)[None, :])
        summed = summed * tl.exp(before - largest) + tl.sum(terms.to(tl.float64), axis=0)
        before = largest
    tl.store(shift + columns, before, mask=columns < B)
    tl.store(total + columns, summed, mask=columns < B)


@triton.jit
def write_terms(
    tensors,  # in/out: E, P, selected, X, inverse_norm, labels, factor, slopes and weighted, as of complete_terms
    sample,  # in: places (BLOCK_R,) int64, which exist, and dL/dlogit of the label, dL/dlse, and lse, compute dtype
    sizes,  # in: classes, B and D
    strides,  # in: of P and of X, of rows and of columns
    scale,  # of cosines in logits, () compute dtype, in
    most,  # () float64, in: see sweep.largest_sum
    BLOCK_R: tl.constexpr,  # samples a program
    BLOCK_D: tl.constexpr,  # columns a step
):
    """See :func:`robustdml_ops.ops.classes.sweep.complete`."""
    E, P, selected, X, inverse_norm, labels, factor, slopes, weighted = tensors
    r, inside, of_label, dlse, whole = sample
    classes, B, D = sizes
    row_stride, column_stride, X_row_stride, X_column_stride = strides
    dtype: tl.constexpr = factor.dtype.element_ty
    inverse = tl.load(inverse_norm + r, mask=inside, other=0.0)
    unit: tl.constexpr = TERM_UNIT if E.dtype.element_ty.primitive_bitwidth < 32 else 1.0
    f = dlse * (1 / unit) * tl.exp(-whole)
    least = tl.abs(of_label) * (1 / unit) * tl.exp(-tl.minimum(whole, in_type(most, dtype))) * 2.0**-24
    f = tl.where(tl.abs(f) < least, least, f)
    tl.store(factor + r, f * inverse, mask=inside)

    label = tl.load(labels + r, mask=inside, other=-1)
    here = (label >= 0) & (label < classes)
    own = of_label / tl.where(f == 0.0, 1.0, f) * scale
    slope = of_label * scale
    if P is not None:
        row = label
        if selected is not None:
            row = tl.load(selected + label, mask=here, other=0)
        of_row = inverse_row_norm(P + row * row_stride, here, D, column_stride, dtype, BLOCK_R, BLOCK_D)
        own *= of_row
        slope *= of_row
    tl.store(E + label * B + r, own, mask=here)
    tl.store(slopes + r, slope, mask=inside)

    for start in range(0, D, BLOCK_D):
        d = (start + tl.arange(0, BLOCK_D)).to(tl.int64)[None, :]
        mask = inside[:, None] & (d < D)
        x = tl.load(X + r[:, None] * X_row_stride + d * X_column_stride, mask=mask, other=0.0).to(dtype)
        # Of length 1 first: either factor alone may be far from 1.
        tl.store(weighted + r[:, None] * D + d, x * inverse[:, None] * f[:, None], mask=mask)


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
    slopes,  # (B,) compute dtype, out: see add_labels
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
    """The last step of the saved terms: the labels' elements, and the factors of the samples."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < B
    r = r.to(tl.int64)
    of_label = tl.load(dlogit + r, mask=inside, other=0.0)
    upstream = tl.load(dlse + r, mask=inside, other=0.0)
    whole = tl.load(lse + r, mask=inside, other=0.0)
    tensors = (E, P, selected, X, inverse_norm, labels, factor, slopes, weighted)
    strides = (row_stride, column_stride, X_row_stride, X_column_stride)
    sample = (r, inside, of_label, upstream, whole)
    write_terms(tensors, sample, (classes, B, D), strides, tl.load(scale), most, BLOCK_R, BLOCK_D)


@triton.jit
def sine_and_cosine(
    angle,  # (BLOCK_R,) float64, in
):
    """As tl.sin and tl.cos, whose reduction of large angles takes a stack."""
    turns = angle / 6.283185307179586
    # Of a 32nd of the angle by their series, then doubled five times.
    x = (turns - tl.floor(turns + 0.5)) * 0.19634954084936207
    square = x * x
    sine = x * (1.0 - square / 6.0 * (1.0 - square / 20.0 * (1.0 - square / 42.0 * (1.0 - square / 72.0))))
    less = square / 2.0 * (1.0 - square / 12.0 * (1.0 - square / 30.0 * (1.0 - square / 56.0)))  # 1 − cosine
    for _ in tl.static_range(5):
        less, sine = 2.0 * sine * sine, 2.0 * sine * (1.0 - less)
    return sine, 1.0 - less


@triton.jit
def turned(
    angle,  # (BLOCK_R,) float64, in
    cosine,  # (BLOCK_R,) float64, in: cos t
):
    """cos(t + angle) and its derivative by cos t."""
    square = (1.0 - cosine) * (1.0 + cosine)
    # The sine's derivative has a pole where the vectors are parallel: there it is a constant 0.
    parallel = square <= 0.0
    sine = tl.where(parallel, 0.0, tl.sqrt(tl.where(parallel, 1.0, square)))
    sine_of_angle, cosine_of_angle = sine_and_cosine(angle)
    slope = cosine_of_angle + tl.where(parallel, 0.0, sine_of_angle * cosine / tl.where(parallel, 1.0, sine))
    return cosine * cosine_of_angle - sine * sine_of_angle, slope


@triton.jit
def moved_by(
    margin,  # () float64, in: m of Margin::quality
    m,  # (BLOCK_R,) float64, in: margins, or the qualities z
    cosine,  # (BLOCK_R,) float64, in: of the labels
    MARGIN: tl.constexpr,  # the name of f in csrc/classes/cpu_step.h
):
    """f(s) and f'(s) of the label's cosine s."""
    PI: tl.constexpr = 3.141592653589793
    if MARGIN == "cosine":
        value, slope = cosine - m, tl.full(cosine.shape, 1.0, tl.float64)
    elif MARGIN == "angle":
        value, slope = turned(m, cosine)
        sine, limit = sine_and_cosine(m)
        beyond = (m > PI) | ((m > 0.0) & (cosine < -limit))
        value = tl.where(beyond, cosine - m * sine, value)
        slope = tl.where(beyond, 1.0, slope)
    else:
        turn = -margin * m
        value, slope = turned(turn, cosine)
        first, last = 1e-3 - turn, PI - 1e-3 - turn  # what t may be
        early = (first > PI) | ((first > 0.0) & (cosine > sine_and_cosine(first)[1]))
        late = (last < 0.0) | ((last < PI) & (cosine < sine_and_cosine(last)[1]))
        END: tl.constexpr = 0.9999995000000417  # cos(0.001)
        value = tl.where(early, END, tl.where(late, -END, value)) - margin * (1.0 + m)
        slope = tl.where(early | late, 0.0, slope)
    return value, slope


@triton.jit(do_not_specialize=["B", "classes", "parts", "count_parts"])
def finish_samples(
    partials,  # (parts, 2, B) compute dtype, in: Σ exp(logit) but the label's, without a shift, see class_lse
    target,  # (B,) compute dtype, in: logit of the label, without a margin
    labels,  # (B,) int64, in: in range
    weights,  # (B,) any floating type or bool, in: of samples; None: 1
    margins,  # (B,) or (C,) any floating type, in: of samples or classes; None: margin
    counts,  # (count_parts,) int32, in: parts of the number of samples of positive weight
    X,  # (B, D) any floating type, any strides, in: embeddings
    inverse_norm,  # (B,) compute dtype, in: 1 / |x|
    P,  # (C, D) bfloat16, any strides, in: proxies, multiplied as they are; None: unit rows are
    E,  # (C, B) operand dtype, contiguous, in/out: the labels' elements are written
    factor,  # (B,) compute dtype, out: f / |x|
    slopes,  # (B,) compute dtype, out: see add_labels
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
    margin: tl.float64,  # in
    margin_unit: tl.float64,  # of margins, in
    most: tl.float64,  # in: see sweep.largest_sum
    EXCLUDE: tl.constexpr,  # whether the sum leaves the label out
    MARGIN: tl.constexpr,  # see moved_by
    CLASS_MARGINS: tl.constexpr,  # whether margins are of classes
    BLOCK_R: tl.constexpr,  # samples a program
    BLOCK_D: tl.constexpr,  # columns a step
    BLOCK_P: tl.constexpr,  # parts a step
):
    """Losses log Σ exp(logit) − logit_y of a planned step, times weight over their number; and backward's terms."""
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
    scale64, m = in_type(scale, tl.float64), in_type(margin, tl.float64)
    moving = tl.zeros((BLOCK_R,), tl.float64) + m
    if margins is not None:
        place = r
        if CLASS_MARGINS:
            place = tl.load(labels + r, mask=inside, other=0)
            # The first kernel of the step has an assertion.
            place = tl.where((place >= 0) & (place < classes), place, 0)
        moving = tl.load(margins + place, mask=inside, other=0.0).to(tl.float64) * in_type(margin_unit, tl.float64)
    cosine = tl.load(target + r, mask=inside, other=0.0).to(tl.float64) / scale64
    moved, slope = moved_by(m, moving, cosine, MARGIN)
    own = scale64 * moved
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

    # dL/dlogit = weight · exp(logit − whole) of the others, −weight · share · f'(s) of the label.
    tensors = (E, P, None, X, inverse_norm, labels, factor, slopes, weighted)
    strides = (row_stride, column_stride, X_row_stride, X_column_stride)
    sample = (r, inside, (-weight * share * slope).to(dtype), weight.to(dtype), whole.to(dtype))
    write_terms(tensors, sample, (classes, B, D), strides, in_type(scale, dtype), most, BLOCK_R, BLOCK_D)
