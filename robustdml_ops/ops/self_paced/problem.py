"""Terms sorted by class, and in NumPy the descent along the exact gradient."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]


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


class ScaledGradient:
    """N^c ∂L/∂w_a of all samples, sorted by class, from class sums: O(N)."""

    def __init__(self, terms: SelfPacedTerms, lam: float, mu: float) -> None:
        self.lam, self.mu = lam, mu
        self.positive, self.negative = (xi.numpy().astype(np.float64) for xi in (terms.positive, terms.negative))
        self.starts, self.sizes = terms.starts.numpy()[:-1], terms.sizes.numpy()
        self.partners = np.maximum(self.sizes - 1, 1)
        self.others = max(len(self.sizes) - 1, 1)

    def __call__(self, w: Vector) -> Vector:
        """The scaled gradient (N,) at the weights w (N,)."""
        zeta, pull, push = (
            np.add.reduceat(values, self.starts) for values in (w, w * self.positive, w * self.negative)
        )
        mean, push = zeta / self.sizes, push / self.sizes
        mean_of_others = (mean.sum() - mean) / self.others
        constant = pull / self.partners + (push.sum() - push) / self.others - self.lam
        if len(mean) > 1:
            constant += 2 * self.mu * (mean - mean_of_others)
        of_positive = self._spread(zeta / self.partners) - w * self._spread(2 / self.partners)
        gradient = self._spread(constant) + of_positive * self.positive
        gradient += self._spread(mean_of_others) * self.negative
        return gradient

    @property
    def lipschitz(self) -> float:
        """A bound of the curvature: the largest row sum of |Hessian|, scaled by N^c."""
        # The row sums of the ξ terms are the gradient at w = 1 without λ and μ; the balance term adds at most 4μ.
        without = self(np.ones_like(self.positive)) + self.lam
        return max(float(without.max()) + 4 * self.mu, float(np.finfo(np.float64).tiny))

    def _spread(self, of_class: Vector) -> Vector:
        return np.repeat(of_class, self.sizes)


def descend(gradient: ScaledGradient, w: Vector, steps: int, tolerance: float) -> Vector:
    """Projected steps of length 1/curvature from w (N,), until every projected gradient is below ``tolerance``."""
    rate = 1 / gradient.lipschitz
    for _ in range(steps):
        with np.errstate(over="ignore"):  # a small curvature gives an infinite step, which is clipped
            moved = np.clip(w - rate * gradient(w), 0, 1)
        change, w = float(np.abs(moved - w).max()), moved
        if change <= rate * tolerance:
            break
    return w
