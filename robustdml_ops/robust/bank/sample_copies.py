"""Where in a first-in-first-out queue the copies of a sample are."""

import torch
from torch import Tensor, nn

from robustdml_ops.engine.validation import check_sizes


class SampleCopies(nn.Module):
    """For each sample a chain through the slots that hold it, the latest first.

    A row's serial number n says how many were stored before it. It is in slot n mod capacity until row n + capacity
    takes the slot. A chain ends where a serial number is too old to be in the queue: nothing has to be unlinked.

    ``num_samples`` is the size of the training set, N, and ``capacity`` the number of slots.
    """

    latest: Tensor
    earlier: Tensor

    def __init__(self, num_samples: int, capacity: int) -> None:
        super().__init__()
        check_sizes(num_samples=num_samples)
        self.num_samples = num_samples
        self.capacity = capacity
        # Serial number of each sample's latest copy. The entry past the end takes the writes that are to have no
        # effect: their number varies, the shapes may not. It holds −1 whatever their order.
        self.register_buffer("latest", torch.full((num_samples + 1,), -1))
        # Of the copy in this slot: the serial number of the same sample's copy before it.
        self.register_buffer("earlier", torch.full((capacity,), -1))

    def link(self, sample_ids: Tensor, serials: Tensor, entering: Tensor) -> None:
        """Put new rows at the head of their samples' chains.

        Of M rows, at least 1 and at most the capacity, ``entering`` (M,) bool says which count. ``sample_ids`` (M,) are
        in 0 … N−1, ``serials`` (M,) are consecutive, those of entering rows new.
        """
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
        """Slots of the latest copies of ``sample_ids`` (B,), as (B, max_copies) int64; −1 where there are no more.

        ``enqueued`` () is the number of rows ever stored.
        """
        oldest = (enqueued - self.capacity).clamp(min=0)
        serials = self.latest[sample_ids]
        found = []
        for _ in range(max_copies):
            slots, held = serials % self.capacity, serials >= oldest
            found.append(torch.where(held, slots, -1))
            serials = torch.where(held, self.earlier[slots], -1)
        return torch.stack(found, dim=1)
