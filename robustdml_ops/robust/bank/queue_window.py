"""A window of a queue whose slots are divided among processes.

A batch of B rows enters at most M = min(B, capacity) slots behind the last row. Every process gathers these slots as a
small queue, the *window*, stores the batch in it, and copies its own slots back.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.shards import OneProcess


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
    """The ``size`` slots behind the last row of a queue.

    The row with serial number n is in slot n mod capacity, and at place n mod ``size`` of the window: any ``size``
    consecutive numbers have different places.
    """

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
