"""Labels of a batch: the one that no class has, and a batch's in both orders, as they come and sorted."""

from dataclasses import dataclass

import torch
from torch import Tensor

# The label of a row that takes no part: an empty slot of a memory bank, a sample of weight 0. Any other int64 is a
# class.
ABSENT: int = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class LabelSets:
    """X_p⁺ = candidates labelled p, with weight 1.

    Both orders of the labels are kept: epilogues that walk the anchors find their positives without a search over B.
    """

    labels: Tensor  # (B,) int64
    sorted_labels: Tensor  # (B,) int64, ascending
    order: Tensor  # (B,) int64, candidate at each place of sorted_labels

    per_class = 0  # elements that a class brings into the cache

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All three."""
        return self.labels, self.sorted_labels, self.order

    @classmethod
    def of(cls, labels: Tensor) -> "LabelSets":
        """Sort ``labels`` (B,) int64; stable, so that the same labels give the same sums."""
        sorted_labels, order = torch.sort(labels, stable=True)
        return cls(labels.contiguous(), sorted_labels, order)
