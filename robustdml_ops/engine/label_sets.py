"""Labels of a batch: two special values, and the labels in order of the batch and, for the CPU, sorted."""

from dataclasses import dataclass

import torch
from torch import Tensor

# The label of a row to leave out: an empty slot of a memory bank, a sample of weight 0. Any other int64 is a class.
ABSENT: int = torch.iinfo(torch.int64).min
# The label of a sample whose class is in the shard of another process: a negative for every local class.
ELSEWHERE = -1


@dataclass(frozen=True)
class LabelSets:
    """X_p⁺ = candidates labelled p. The CPU's epilogues walk the sorted labels class by class."""

    labels: Tensor  # (B,) int64; or (B, K), distinct in a row: K labels of each candidate, of which some are ELSEWHERE
    sorted_labels: Tensor | None = None  # (B·K,) int64, ascending; None: not on the CPU
    order: Tensor | None = None  # (B·K,) int64, place in labels of each of sorted_labels; None exactly where that is
    elsewhere: bool = False  # whether some labels are ELSEWHERE; the range of all has been checked then
    weights: Tensor | None = None  # (B, K) compute dtype, of labels (B, K) in the anchor log-sum-exp; None: 1

    per_class = 0  # elements that a class brings into the cache

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are not None."""
        return tuple(tensor for tensor in (*self.in_both_orders, self.weights) if tensor is not None)

    @property
    def labels_each(self) -> int:
        """Labels of a candidate, K."""
        return self.labels.shape[1] if self.labels.dim() == 2 else 1

    @property
    def in_both_orders(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Labels, sorted labels and their order."""
        return self.labels, self.sorted_labels, self.order

    @classmethod
    def of(cls, labels: Tensor, elsewhere: bool = False, weights: Tensor | None = None) -> "LabelSets":
        """From ``labels`` int64; sorted on the CPU, stably, so that the same labels give the same sums."""
        orders = torch.sort(labels.flatten(), stable=True) if labels.device.type == "cpu" else (None, None)
        weights = None if weights is None else weights.contiguous()  # kernels read them by address
        return cls(labels.contiguous(), orders[0], orders[1], elsewhere, weights)

    def by_class(self) -> tuple[Tensor, Tensor]:
        """Sorted labels and their order; sorted now if the labels came from a GPU."""
        if self.sorted_labels is None or self.order is None:
            return torch.sort(self.labels.flatten(), stable=True)
        return self.sorted_labels, self.order

    def count(self, present: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Distinct labels of the candidates ``present`` (B,) bool (None: all), () of a floating type, at least 1."""
        several = self.labels.dim() == 2
        if present is None:
            ordered = self.by_class()[0]
        else:
            present = present[:, None] if several else present
            ordered = torch.sort(torch.where(present, self.labels, ELSEWHERE).flatten())[0]
        changes = (ordered[1:] != ordered[:-1]).sum(dtype=dtype)
        if present is None and not several:
            return changes + 1
        return (changes + (ordered[:1] >= 0).sum()).clamp(min=1)
