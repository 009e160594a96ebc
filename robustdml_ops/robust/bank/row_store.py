"""A memory bank's slots: a first-in-first-out queue, copies of a sample, and both backends that store a batch.

Where slots are divided among processes, a batch of B rows enters at most M = min(B, capacity) slots behind the last
row. Every process gathers these slots as a small queue, the *window*, stores the batch in it, and copies its own back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robustdml_ops.backends.triton_device import block_of, current, grid_of, launch
from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.engine.sums import add_rows
from robustdml_ops.engine.validation import check_sizes

_BLOCK_R = 4
_BLOCK_B = 512
_BLOCK_M = 256


class Slots(NamedTuple):
    """Consecutive slots of a queue."""

    features: Tensor  # (n, D)
    labels: Tensor  # (n,) int64
    sample_ids: Tensor  # (n,) int64


def picked(values: Tensor, places: Tensor, inside: Tensor) -> Tensor:
    """Entries of ``values`` at ``places`` (M,), 0 where ``inside`` (M,) is False; of no values all are 0."""
    if len(values) == 0:
        return values.new_zeros(len(places), *values.shape[1:])
    rows = values.index_select(0, torch.where(inside, places, 0))
    return rows.masked_fill(~inside.view(-1, *(1,) * (rows.dim() - 1)), 0)


class QueueWindow:
    """The ``size`` slots behind the last row of a queue; row number n is at place n mod ``size`` of the window."""

    def __init__(self, here: Slots, first: int, capacity: int, enqueued: Tensor, size: int, shards: OneProcess) -> None:
        self.here, self.first, self.capacity, self.size = here, first, capacity, size
        self.enqueued = enqueued.clone()  # a copy: storing the batch advances it
        steps = (torch.arange(size, device=enqueued.device) - enqueued) % size
        places = (enqueued + steps) % capacity - first
        inside = (places >= 0) & (places < len(here.labels))
        # One process has each row and the others have zeros, so the sum is that row. Ids are written, never read.
        self.slots = Slots(
            shards.sum_over_processes(picked(here.features, places, inside)),
            shards.sum_over_processes(picked(here.labels, places, inside)),
            picked(here.sample_ids, places, inside),
        )

    def write_back(self) -> None:
        """Copy the window into the slots that are here; min(M, n) are written, some with their old content."""
        n = len(self.here.labels)  # the host does not know how many of the window's slots are here
        if n == 0:
            return
        start = (self.enqueued - self.first) % self.capacity
        # Negative if the window wraps around from the last slot to the first.
        start = torch.where(start + self.size > self.capacity, start - self.capacity, start)
        places = (start + torch.arange(min(self.size, n), device=start.device)) % n
        steps = (self.first + places - self.enqueued) % self.capacity
        inside, source = steps < self.size, (self.enqueued + steps) % self.size
        for held, window in zip(self.here, self.slots, strict=True):
            old = held.index_select(0, places)
            chosen = inside.view(-1, *(1,) * (held.dim() - 1))
            held.index_copy_(0, places, torch.where(chosen, window.index_select(0, source), old))


class SampleCopies(nn.Module):
    """A linked list of the slots that hold each sample, the latest first.

    The row with serial number n, of which n were stored before, is in slot n mod capacity until row n + capacity
    replaces it. A list ends at the first serial number that is too old to be in the queue, so nothing is ever unlinked.
    """

    latest: Tensor  # (N + 1,) int64: serial number of each sample's latest copy; the last entry stays −1
    earlier: Tensor  # (capacity,) int64: serial number of the previous copy of the sample in each slot

    def __init__(self, num_samples: int, capacity: int) -> None:
        super().__init__()
        check_sizes(num_samples=num_samples)
        self.num_samples, self.capacity = num_samples, capacity
        # Rows that do not enter write −1 to the last entry: shapes do not depend on how many rows enter.
        self.register_buffer("latest", torch.full((num_samples + 1,), -1))
        self.register_buffer("earlier", torch.full((capacity,), -1))

    def link(self, sample_ids: Tensor, serials: Tensor, entering: Tensor) -> None:
        """Put the ``entering`` rows, bool, at the head of their samples' lists; all (M,), with consecutive serials."""
        ids, order = torch.where(entering, sample_ids, self.num_samples).sort(stable=True)
        serials = serials[order]
        same = ids[1:] == ids[:-1]
        before = self.latest[ids]
        before[1:] = torch.where(same, serials[:-1], before[1:])
        slots, entering = serials % self.capacity, ids < self.num_samples
        self.earlier.index_copy_(0, slots, torch.where(entering, before, self.earlier[slots]))
        is_last = torch.cat([~same, same.new_ones(1)]) & entering
        ids = torch.where(is_last, ids, self.num_samples)
        self.latest.index_copy_(0, ids, torch.where(is_last, serials, -1))

    def find(self, sample_ids: Tensor, enqueued: Tensor, max_copies: int) -> Tensor:
        """Slots of the latest copies of ``sample_ids`` (B,), (B, max_copies) int64; −1 where there are no more."""
        oldest = (enqueued - self.capacity).clamp(min=0)
        serials = self.latest[sample_ids]
        found = []
        for _ in range(max_copies):
            slots, held = serials % self.capacity, serials >= oldest
            found.append(torch.where(held, slots, -1))
            serials = torch.where(held, self.earlier[slots], -1)
        return torch.stack(found, dim=1)


class ClassStatistics(NamedTuple):
    """Sum and number of rows per class, or per sample."""

    sums: Tensor  # (n, D)
    counts: Tensor  # (n,) int64


@dataclass(frozen=True)
class StoreProblem:
    """A batch of B ≥ 1 rows, the slots of the bank and the statistics of its classes, which change in place.

    Kept rows take the slots behind the last row in their order; if they exceed the capacity, the last ones are
    stored. On a GPU a row with NaN or inf counts as not kept. The sum of a class adds the entering rows in the
    order of the batch, then subtracts the leaving ones, the oldest first; without rows it is 0. A backend returns
    the classes (2M,) that rows enter, then those that rows leave, < 0 for none.
    """

    X: Tensor  # (B, D) in the type of the features
    new_labels: Tensor  # (B,) int64
    new_ids: Tensor | None  # (B,) int64; None: −1 is stored
    keep: Tensor  # (B,) bool: which rows enter
    features: Tensor  # (capacity, D); of a divided queue, those of its window
    labels: Tensor  # (capacity,) int64, negative where a slot is empty
    sample_ids: Tensor  # (capacity,) int64
    classes: ClassStatistics  # of the classes that are here
    enqueued: Tensor  # () int64: rows ever stored
    copies: SampleCopies | None  # requires new_ids
    here: Callable[[Tensor], Tensor]  # labels counted from the first class that is here, negative for other classes

    @property
    def most(self) -> int:
        """M = min(B, capacity), the most rows that enter; the host never knows how many do."""
        return min(len(self.new_labels), len(self.labels))


def store_in_eager(problem: StoreProblem) -> Tensor:
    """On every device, without a compiler."""
    features, labels, ids, keep = problem.X, problem.new_labels, problem.new_ids, problem.keep
    sums, counts = problem.classes
    if features.device.type != "cpu":
        keep = keep & (features - features == 0).all(1)  # isfinite().all() takes two launches more
    if ids is None:
        ids = torch.full_like(labels, -1)
    rank, first, capacity = keep.cumsum(0), problem.enqueued, len(problem.labels)
    kept = rank[-1]
    if len(keep) > capacity:
        overflow = (kept - capacity).clamp(min=0)
        keep, first = keep & (rank > overflow), first + overflow
    order = torch.argsort(keep.byte(), descending=True, stable=True)[: problem.most]
    features, labels, ids, entering = (given.index_select(0, order) for given in (features, labels, ids, keep))
    # One slot per row, all different; rows that do not enter write back the old content of their slot.
    serials = first + torch.arange(len(order), device=order.device)
    slots = serials % capacity
    old_features, old_labels = problem.features.index_select(0, slots), problem.labels[slots]
    features = torch.where(entering[:, None], features, old_features)

    touched = torch.where(entering, torch.stack([labels, old_labels]), -1).flatten().clamp_(min=-1)
    touched = problem.here(touched)  # classes of other processes become negative, as padding
    if len(sums):
        classes = spread(touched, len(counts))  # for −1, 0 times a row is added
        plus, minus = (touched >= 0).long().chunk(2)
        signs = torch.cat([plus, -minus])
        add_rows(counts, classes, signs)
        add_rows(sums, classes, torch.cat([features, old_features]).to(sums.dtype) * signs[:, None])
        # A class that lost its last row is set to 0: the residue of rounding has a direction, but no meaning.
        left = classes[len(order) :]
        sums.index_copy_(0, left, torch.where(counts[left, None] > 0, sums.index_select(0, left), 0))
    if problem.copies is not None:
        problem.copies.link(ids, serials, entering)
    problem.features.index_copy_(0, slots, features)
    problem.labels.index_copy_(0, slots, torch.where(entering, labels, old_labels))
    problem.sample_ids.index_copy_(0, slots, torch.where(entering, ids, problem.sample_ids[slots]))
    problem.enqueued.add_(kept)
    return touched


def spread(classes: Tensor, num_classes: int) -> Tensor:
    """Classes (M,) int64 with different classes in place of negative numbers, for rows that add nothing."""
    # ``index_put_`` adds the rows of one class one after the other.
    return torch.where(classes < 0, torch.arange(len(classes), device=classes.device) % num_classes, classes)


def store_in_triton(problem: StoreProblem) -> Tensor:
    """In three launches, in four with sample ids to link; on CUDA devices, in Triton's interpreter also on the CPU."""
    from robustdml_ops.robust.bank.row_store_kernels import assign_slots, exchange_rows, keep_finite, link_copies

    (B, D), M, capacity = problem.X.shape, problem.most, len(problem.labels)
    X, new_labels = (_separate(given, problem) for given in (problem.X, problem.new_labels))
    new_ids = None if problem.new_ids is None else _separate(problem.new_ids, problem)
    kept = torch.empty_like(problem.keep, dtype=torch.uint8, memory_format=torch.contiguous_format)
    touched = new_labels.new_empty(2 * M)
    source, serials = new_labels.new_empty(2, M).unbind(0)
    # The arguments of each kernel stand in the order of its signature.
    rows, ends = (X, problem.features, *problem.classes), (M, capacity)
    keep, queue = problem.keep.contiguous().view(torch.uint8), (problem.labels, problem.sample_ids, problem.enqueued)
    blocks = {"BLOCK_D": block_of(D, 512), "num_warps": 4, "num_stages": 1}
    with current(X):
        keep_finite[grid_of(B, _BLOCK_R)](X, keep, kept, B, D, **launch(BLOCK_R=_BLOCK_R, **blocks))
        assigned, places = (kept, new_labels, new_ids, *queue), (source, serials)
        assign_slots[(1,)](*assigned, *places, touched, B, *ends, **launch(BLOCK=_BLOCK_B, num_warps=8, num_stages=1))
        touched = problem.here(touched)
        exchange_rows[(2 * M,)](*rows, touched, *places, *ends, D, **launch(BLOCK_M=_BLOCK_M, **blocks))
        if (copies := problem.copies) is not None:
            lists = (copies.latest, copies.earlier, M, copies.capacity)
            link_copies[(M,)](new_ids, *places, *lists, **launch(BLOCK_M=_BLOCK_M, num_warps=4, num_stages=1))
    return touched


ROW_STORES: dict[str, Callable[[StoreProblem], Tensor]] = {"triton": store_in_triton, "eager": store_in_eager}


def _separate(given: Tensor, problem: StoreProblem) -> Tensor:
    """Contiguous memory that does not overlap the bank's, which changes while the batch is read."""
    address = given.untyped_storage().data_ptr()
    buffers = (problem.features, problem.labels, problem.sample_ids)
    if address and any(address == buffer.untyped_storage().data_ptr() for buffer in buffers):
        return given.clone(memory_format=torch.contiguous_format)
    return given.contiguous()
