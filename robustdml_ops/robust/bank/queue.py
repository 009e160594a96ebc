"""A first-in-first-out queue: its slots, a window of those that are divided among processes, and copies of a sample.

A batch of B rows enters at most M = min(B, capacity) slots behind the last row. Every process gathers these slots as a
small queue, the *window*, stores the batch in it, and copies its own slots back.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.engine.validation import check_sizes


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
            shards.count(picked(here.features, places, inside)),
            shards.count(picked(here.labels, places, inside)),
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
