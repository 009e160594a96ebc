"""Index of the copies of each sample in a first-in-first-out queue."""

import torch
from torch import Tensor, nn

from robustdml_ops.engine.validation import check_sizes


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
        self.num_samples = num_samples
        self.capacity = capacity
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
