# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Triton kernels that store a batch in a memory bank.

If several rows share a class or a sample, the program of the first row processes all of them in their order: sums have
the same bits every time, and no two programs write to one place.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["B"])
def keep_finite(
    X,  # (B, D) any floating type, contiguous, in
    keep,  # (B,) uint8, in: 1 for rows to keep
    kept,  # (B,) uint8, out: 1 for those without NaN and inf
    B,  # rows, in
    D,  # columns, in
    BLOCK_R: tl.constexpr,  # rows a program
    BLOCK_D: tl.constexpr,  # columns a step
):
    """Rows with NaN or inf are not kept: in the sums they would stay for good."""
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside = r < B
    bad = tl.zeros((BLOCK_R, BLOCK_D), tl.int32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (d < D)[None, :]
        x = tl.load(X + r.to(tl.int64)[:, None] * D + d[None, :], mask=mask, other=0.0)
        x = x.to(tl.float64 if x.dtype == tl.float64 else tl.float32)
        bad |= tl.where(tl.abs(x) < float("inf"), 0, 1)
    wanted = tl.load(keep + r, mask=inside, other=0)
    tl.store(kept + r, tl.where(tl.max(bad, axis=1) > 0, 0, wanted), mask=inside)


@triton.jit(do_not_specialize=["B", "M", "capacity"])
def assign_slots(
    kept,  # (B,) uint8, in: 1 for rows to store
    new_labels,  # (B,) int64, in
    new_ids,  # (B,) int64, in; None: −1 is stored
    labels,  # (capacity,) int64, in/out
    sample_ids,  # (capacity,) int64, in/out
    enqueued,  # () int64, in/out: rows ever stored
    source,  # (M,) int64, out: row of the batch at each place among those that enter
    serials,  # (M,) int64, out: its serial number; −1 behind the last place
    touched,  # (2M,) int64, out: label that it brings, then that of the row that leaves its slot; −1 for none
    B,  # rows, in
    M,  # min(B, capacity), in
    capacity,  # slots, in
    BLOCK: tl.constexpr,  # rows a step
):
    """Kept rows take consecutive serial numbers, and with them slots. One program."""
    first = tl.load(enqueued)
    many = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, B, BLOCK):
        b = start + tl.arange(0, BLOCK)
        many += tl.load(kept + b, mask=b < B, other=0).to(tl.int64)
    number = tl.sum(many, axis=0)
    # Of more rows than there are slots, the first ones count as stored and gone.
    gone = tl.maximum(number - capacity, 0)
    next_place = -gone
    for start in range(0, B, BLOCK):
        b = start + tl.arange(0, BLOCK)
        keeps = tl.load(kept + b, mask=b < B, other=0).to(tl.int64)
        place = next_place + tl.cumsum(keeps, axis=0) - keeps
        enters = (keeps > 0) & (place >= 0)
        serial = first + gone + place
        slot = serial % capacity
        label = tl.load(new_labels + b, mask=enters, other=0)
        old_label = tl.load(labels + slot, mask=enters, other=-1)
        tl.store(touched + place, label, mask=enters)
        tl.store(touched + M + place, tl.maximum(old_label, -1), mask=enters)
        tl.store(source + place, b.to(tl.int64), mask=enters)
        tl.store(serials + place, serial, mask=enters)
        # Another thread may store a slot's new label than the one that loads its old one.
        tl.debug_barrier()
        tl.store(labels + slot, label, mask=enters)
        sample = tl.full((BLOCK,), -1, tl.int64)
        if new_ids is not None:
            sample = tl.load(new_ids + b, mask=enters, other=-1)
        tl.store(sample_ids + slot, sample, mask=enters)
        next_place += tl.sum(keeps, axis=0)
    for start in range(0, M, BLOCK):
        place = start + tl.arange(0, BLOCK)
        behind = (place >= number - gone) & (place < M)
        none = tl.full((BLOCK,), -1, tl.int64)
        tl.store(serials + place, none, mask=behind)
        tl.store(touched + place, none, mask=behind)
        tl.store(touched + M + place, none, mask=behind)
    tl.store(enqueued, first + number)


@triton.jit
def occurs_before(
    place,  # () int64, in
    value,  # () int64, in
    values,  # int64, in
    source,  # (place,) int64, in: where in ``values`` each place's value is; None: at the place
    BLOCK: tl.constexpr,
):
    """Whether one of the places before has the same value."""
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, place, BLOCK):
        j = start + tl.arange(0, BLOCK)
        where = j
        if source is not None:
            where = tl.load(source + j, mask=j < place, other=0)
        other = tl.load(values + where, mask=j < place, other=-1)
        found |= ((other == value) & (j < place)).to(tl.int32)
    return tl.max(found, axis=0) > 0


@triton.jit(do_not_specialize=["M", "capacity"])
def exchange_rows(
    X,  # (B, D) as the features, contiguous, in
    features,  # (capacity, D) any floating type, contiguous, in/out
    sums,  # (C, D) compute dtype, contiguous, in/out
    counts,  # (C,) int64, in/out
    touched,  # (2M,) int64, in: class that each place's row enters, then that the row in its slot leaves; < 0: none
    source,  # (M,) int64, in: row of the batch at each place
    serials,  # (M,) int64, in: −1 where no row enters
    M,  # places, in
    capacity,  # slots, in
    D,  # columns, in
    BLOCK_M: tl.constexpr,  # places a step of a search
    BLOCK_D: tl.constexpr,  # columns a step
):
    """Update sums and counts, and write new rows over old ones; a program for each entry of ``touched``."""
    own = tl.program_id(0).to(tl.int64)
    c = tl.load(touched + own)
    if c < 0:
        # No class here loses the row in this slot, if it has one.
        if own >= M:
            serial = tl.load(serials + own - M)
            if serial >= 0:
                row = tl.load(source + own - M)
                for start in range(0, D, BLOCK_D):
                    d = start + tl.arange(0, BLOCK_D)
                    x = tl.load(X + row * D + d, mask=d < D, other=0.0)
                    tl.store(features + (serial % capacity) * D + d, x, mask=d < D)
    elif not occurs_before(own, c, touched, None, BLOCK_M):
        change = tl.zeros((BLOCK_M,), tl.int64)
        for start in range(own, 2 * M, BLOCK_M):
            j = start + tl.arange(0, BLOCK_M)
            same = tl.load(touched + j, mask=j < 2 * M, other=-1) == c
            change += tl.where(same, tl.where(j < M, 1, -1), 0)
        rows_left = tl.load(counts + c) + tl.sum(change, axis=0)
        for first_column in range(0, D, BLOCK_D):
            d = first_column + tl.arange(0, BLOCK_D)
            total = tl.load(sums + c * D + d, mask=d < D, other=0.0)
            for start in range(own, 2 * M, BLOCK_M):
                j = start + tl.arange(0, BLOCK_M)
                same = (tl.load(touched + j, mask=j < 2 * M, other=-1) == c).to(tl.int32)
                for _ in range(tl.sum(same, axis=0)):
                    entry = tl.min(tl.where(same > 0, j, 2 * M), axis=0)
                    same = tl.where(j == entry, 0, same)
                    place = tl.where(entry < M, entry, entry - M)
                    x = tl.load(X + tl.load(source + place) * D + d, mask=d < D, other=0.0)
                    if entry < M:
                        total += x.to(total.dtype)
                    else:
                        slot = features + (tl.load(serials + place) % capacity) * D + d
                        total -= tl.load(slot, mask=d < D, other=0.0).to(total.dtype)
                        tl.store(slot, x, mask=d < D)
            # The residue of rounding has a direction, but no meaning.
            tl.store(sums + c * D + d, tl.where(rows_left > 0, total, 0.0), mask=d < D)
        tl.store(counts + c, rows_left)


@triton.jit(do_not_specialize=["M", "capacity"])
def link_copies(
    new_ids,  # (B,) int64, in
    source,  # (M,) int64, in: row of the batch at each place
    serials,  # (M,) int64, in: −1 where no row enters, behind all others
    latest,  # (N + 1,) int64, in/out: serial number of each sample's latest copy
    earlier,  # (capacity,) int64, in/out: of the copy in a slot, serial number of the one before it
    M,  # places, in
    capacity,  # slots, in
    BLOCK_M: tl.constexpr,  # places a step of a search
):
    """New rows at the head of their samples' chains; a program for each place."""
    own = tl.program_id(0).to(tl.int64)
    if tl.load(serials + own) >= 0:
        sample = tl.load(new_ids + tl.load(source + own))
        if not occurs_before(own, sample, new_ids, source, BLOCK_M):
            before = tl.load(latest + sample)
            for start in range(own, M, BLOCK_M):
                j = start + tl.arange(0, BLOCK_M)
                enters = tl.load(serials + j, mask=j < M, other=-1) >= 0
                row = tl.load(source + j, mask=enters, other=0)
                same = (enters & (tl.load(new_ids + row, mask=enters, other=-1) == sample)).to(tl.int32)
                for _ in range(tl.sum(same, axis=0)):
                    place = tl.min(tl.where(same > 0, j, M), axis=0)
                    same = tl.where(j == place, 0, same)
                    serial = tl.load(serials + place)
                    tl.store(earlier + serial % capacity, before)
                    before = serial
            tl.store(latest + sample, before)
