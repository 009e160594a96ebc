"""Where in a first-in-first-out queue the copies of a sample are."""

import torch
from torch import Tensor, nn


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
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        self.num_samples = num_samples
        self.capacity = capacity
        # Serial number of each sample's latest copy. The entry past the end takes the writes that are to have no
        # effect: their number varies, the shapes may not. It holds −1 whatever their order.
        self.register_buffer("latest", torch.full((num_samples + 1,), -1))
        # Of the copy in this slot: the serial number of the same sample's copy before it.
        self.register_buffer("earlier", torch.full((capacity,), -1))

    def check_range(self, sample_ids: Tensor) -> None:
        """As :func:`check_id_range`, for the samples here."""
        check_id_range(sample_ids, self.num_samples)

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
        slots = serials % self.capacity
        self.earlier.index_copy_(0, slots, torch.where(ids < self.num_samples, before, self.earlier[slots]))
        is_last = torch.cat([~same, same.new_ones(1)])
        ids = torch.where(is_last, ids, self.num_samples)
        self.latest.index_copy_(0, ids, torch.where(ids < self.num_samples, serials, -1))

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
        serials = self.latest[sample_ids]
        found = []
        for _ in range(max_copies):
            serials = torch.where(serials >= enqueued - self.capacity, serials, -1)
            slots = torch.where(serials >= 0, serials % self.capacity, -1)
            found.append(slots)
            serials = torch.where(serials >= 0, self.earlier[slots.clamp(min=0)], -1)
        return torch.stack(found, dim=1)


def check_id_range(sample_ids: Tensor, num_samples: int) -> None:
    """Every id in 0..N-1: IndexError on the CPU, a device-side assertion elsewhere (no host sync)."""
    if len(sample_ids) == 0:
        return
    outside = (sample_ids < 0) | (sample_ids >= num_samples)
    if sample_ids.device.type != "cpu":
        torch._assert_async(~outside.any(), f"a sample id is outside 0 … {num_samples - 1}")
    elif outside.any():
        where = int(outside.nonzero()[0])
        raise IndexError(
            f"sample_ids[{where}] = {int(sample_ids[where])} is outside 0 … {num_samples - 1} "
            f"(num_samples = {num_samples})"
        )
