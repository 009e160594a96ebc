"""Terms sorted by class, and the settings of Algorithm 3."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class SelfPacedTerms:
    """ξ⁺ and ξ⁻ on the host, sorted by class. Classes are the labels that occur, renumbered."""

    positive: Tensor  # (N,) float32 or float64
    negative: Tensor  # (N,), the same type
    classes: Tensor  # (N,) int64, ascending, 0 … C − 1
    names: Tensor  # (C,) int64: the labels
    order: Tensor  # (N,) int64: the sample at each place

    @classmethod
    def of(cls, positive: Tensor, negative: Tensor, labels: Tensor) -> "SelfPacedTerms":
        """Sort terms in the order of the samples, with any integers as labels."""
        names, classes = labels.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        classes, order = classes.sort(stable=True)
        return cls(positive[order], negative[order], classes, names, order)

    @cached_property
    def sizes(self) -> Tensor:
        """(C,) int64: N^c, at least 1."""
        return torch.bincount(self.classes, minlength=len(self.names))

    @cached_property
    def starts(self) -> Tensor:
        """(C + 1,) int64: class c is at starts[c] … starts[c + 1] − 1."""
        return torch.nn.functional.pad(self.sizes.cumsum(0), (1, 0))

    def unsort(self, values: Tensor) -> Tensor:
        """(N,) in the order of the samples."""
        return torch.empty_like(values).index_copy_(0, self.order, values)


@dataclass(frozen=True)
class CoordinateDescent:
    """Settings of Algorithm 3."""

    lam: float
    mu: float
    rates: Tensor  # (C,) float64: γ / N^c
    decay: float  # γ of step t is γ / (1 + decay·t)
    classes_per_step: int  # P
    samples_per_class: int  # K
    seed: int  # 0 … 2⁶⁴ − 1
    steps: int
