# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Product and exponential of a chunk in one Triton kernel, for sums over the batch and for sums over the classes.

Terms leave the kernel in the operand type with their sums, and similarities never do. dL/dS has the factor of a class
or of a sample beside its term, which enters the products of both gradients with their other operands.
"""

import triton
import triton.language as tl

from robustdml_ops.backends.triton_math import in_type, log_one_plus

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def along(
    vector,  # (n,), in
    FIRST: tl.constexpr,  # whether its elements are rows of a tile, or else columns
):
    """The vector as (n, 1) or (1, n)."""
    return vector[:, None] if FIRST else vector[None, :]


@triton.jit(do_not_specialize=["c", "first", "first_place", "parts", "per_part"])
def fused_terms(
    V,  # (c, D) operand dtype, in: unit proxies, or proxies as they are; by COLUMNS (D, c)
    X,  # (B, D) operand dtype, contiguous, in: unit embeddings
    inverse_norm,  # (c,) float32, in: 1 / |p|
    labels,  # (B,) int64, in: in range
    bias,  # (B,) float32, in: added to the exponents, −∞: without the sample; None: 0
    sums,  # BY_CLASS: (c,) float32, out: Σ exp; else (all parts, 2, B), of which the second rows are written
    factors,  # (c,) float32, out: of the rows of dL/dP; None: not wanted, as in sums over the classes
    scaled,  # (c, D) operand dtype, contiguous, out: proxies times their factors; None: not wanted
    totals,  # (all class blocks,) float64, out: Σ log(1 + height · sum) · share; None exactly where factors is
    E,  # (c, B) operand dtype, contiguous, out: terms, 0 at labels
    c,  # classes of the chunk, in
    B,  # samples, in
    row_stride,  # of V in elements, in; the other stride is 1
    first,  # class of the first row, in
    first_place,  # of the chunk in totals or in the parts of sums, in
    parts,  # parts of the classes, in; 1 where BY_CLASS
    per_part,  # class blocks of a part, in
    scale: tl.float64,  # of cosines in exponents, in
    unit: tl.float64,  # factor of the terms beside scale / |p|, in; where BY_CLASS they have none
    height: tl.float64,  # factor of the sums, in; BY_CLASS alone
    share: tl.float64,  # dL/dlog(1 + height · sum), in; BY_CLASS alone
    D: tl.constexpr,  # columns of X and V
    BY_CLASS: tl.constexpr,  # whether sums are of classes over the samples, or else of samples over the classes
    AS_THEY_ARE: tl.constexpr,  # whether V are proxies, and not unit rows
    COLUMNS: tl.constexpr,  # whether V is given by columns
    BLOCK_C: tl.constexpr,  # classes a tile
    BLOCK_B: tl.constexpr,  # samples a tile
    BLOCK_D: tl.constexpr,  # columns a step
):
    """Terms exp(scale · cosine + bias) and their sums. Rows of a tile are what has the sums, so that a thread adds."""
    scale, unit = in_type(scale, tl.float32), in_type(unit, tl.float32)
    x_tiles = tl.make_tensor_descriptor(X, [B, D], [D, 1], [BLOCK_B, BLOCK_D])
    if COLUMNS:
        v_tiles = tl.make_tensor_descriptor(V, [D, c], [row_stride, 1], [BLOCK_D, BLOCK_C])
    else:
        v_tiles = tl.make_tensor_descriptor(V, [c, D], [row_stride, 1], [BLOCK_C, BLOCK_D])
    e_tiles = tl.make_tensor_descriptor(E, [c, B], [B, 1], [BLOCK_C, BLOCK_B])
    BLOCK_ROWS: tl.constexpr = BLOCK_C if BY_CLASS else BLOCK_B
    sample_blocks, class_blocks = tl.cdiv(B, BLOCK_B), tl.cdiv(c, BLOCK_C)
    items = class_blocks if BY_CLASS else sample_blocks * parts
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        part = item // sample_blocks
        begin = 0 if BY_CLASS else part * per_part
        end = sample_blocks if BY_CLASS else tl.minimum(begin + per_part, class_blocks)
        total = tl.zeros((BLOCK_ROWS,), tl.float32)
        for tile in range(begin, end):
            first_class = (item if BY_CLASS else tile) * BLOCK_C
            first_sample = (tile if BY_CLASS else item % sample_blocks) * BLOCK_B
            classes, samples = first_class + tl.arange(0, BLOCK_C), first_sample + tl.arange(0, BLOCK_B)
            inside, exist = classes < c, samples < B
            place = (tl.load(labels + samples, mask=exist, other=-1) - first).to(tl.int32)
            here = exist & (place >= first_class) & (place < tl.minimum(first_class + BLOCK_C, c))
            slope = tl.full((BLOCK_C,), scale, tl.float32)
            if AS_THEY_ARE:
                slope *= tl.load(inverse_norm + classes, mask=inside, other=0.0)
            s = tl.zeros((BLOCK_ROWS, BLOCK_C + BLOCK_B - BLOCK_ROWS), tl.float32)
            for start in range(0, D, BLOCK_D):
                x = x_tiles.load([first_sample, start])
                v = v_tiles.load([start, first_class] if COLUMNS else [first_class, start])
                s = tl.dot(v, x.T, s) if BY_CLASS else tl.dot(x, v if COLUMNS else v.T, s)
            exponent = s * along(slope * LOG2_E, BY_CLASS)
            # Few tiles hold a label, or reach beyond the end of what is summed over: the others have no masks.
            beyond = first_sample + BLOCK_B > B if BY_CLASS else first_class + BLOCK_C > c
            if beyond | (tl.max(here.to(tl.int32), axis=0) > 0):
                own = along(classes, BY_CLASS) == along(tl.where(here, place, -1), not BY_CLASS)
                out = own | ~along(exist if BY_CLASS else inside, False)
                exponent = tl.where(out, float("-inf"), exponent)
            if bias is not None:
                exponent += along(tl.load(bias + samples, mask=exist, other=0.0) * LOG2_E, not BY_CLASS)
            e = tl.exp2(exponent)
            total += tl.sum(e, axis=1)
            if not BY_CLASS:
                e *= along(slope * unit, BY_CLASS)
            e = e.to(E.dtype.element_ty)
            e_tiles.store([first_class, first_sample], e if BY_CLASS else e.T)
        if BY_CLASS:
            rows = item * BLOCK_C + tl.arange(0, BLOCK_C)
            whole = in_type(height, tl.float32) * total
            tl.store(sums + rows, total, mask=rows < c)
            logs = tl.where(rows < c, log_one_plus(whole), 0.0).to(tl.float64)
            tl.store(totals + first_place + item, tl.sum(logs, axis=0) * share)
            factor = in_type(scale * height * share, tl.float32) / (1.0 + whole)
            of_gradient = factor * tl.load(inverse_norm + rows, mask=rows < c, other=0.0)
            tl.store(factors + rows, of_gradient, mask=rows < c)
            if scaled is not None:
                of_rows = of_gradient if AS_THEY_ARE else factor
                scaled_tiles = tl.make_tensor_descriptor(scaled, [c, D], [D, 1], [BLOCK_C, BLOCK_D])
                for start in range(0, D, BLOCK_D):
                    v = v_tiles.load([item * BLOCK_C, start]).to(tl.float32) * of_rows[:, None]
                    scaled_tiles.store([item * BLOCK_C, start], v.to(scaled.dtype.element_ty))
        else:
            rows = (item % sample_blocks) * BLOCK_B + tl.arange(0, BLOCK_B)
            plane = (first_place + part).to(tl.int64) * 2 + 1
            tl.store(sums + plane * B + rows, total, mask=rows < B)
