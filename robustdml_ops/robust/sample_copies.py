"""Where in a first-in-first-out queue the copies of a sample are."""

import torch
from torch import Tensor, nn

from robustdml_ops.ops.validation import check_sizes


class SampleCopies(nn.Module):
    """For each sample a chain through the slots that hold it, the latest first.

    Rows are known by serial numbers: the n-th row ever stored is in slot n mod capacity until row n + capacity replaces
    it. A chain thus ends by itself at the first number that is too old, and nothing need be unlinked.

    Parameters
    ----------
    num_samples : int
        Size of the training set, N.
    capacity : int
        Slots of the queue.
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

        Parameters
        ----------
        sample_ids : Tensor
            (M,) int64, in 0..N-1; repetitions are in order.
        serials : Tensor
            (M,) int64, consecutive, M at least 1 and at most the capacity.
        entering : Tensor
            (M,) bool: the rows that count; their serial numbers are new.
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
        """Slots of the latest copies.

        Parameters
        ----------
        sample_ids : Tensor
            (B,) int64, in 0..N-1.
        enqueued : Tensor
            () int64: rows ever stored.
        max_copies : int
            Steps along each chain.

        Returns
        -------
        Tensor
            (B, max_copies) int64, −1 where a sample has no further copy.
        """
        oldest = (enqueued - self.capacity).clamp(min=0)
        serials = self.latest[sample_ids]
        found = []
        for _ in range(max_copies):
            slots, held = serials % self.capacity, serials >= oldest
            found.append(torch.where(held, slots, -1))
            serials = torch.where(held, self.earlier[slots], -1)
        return torch.stack(found, dim=1)
