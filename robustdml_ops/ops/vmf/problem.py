"""The functions and fits of the von Mises–Fisher distribution, as its backends take them.

With order v = D/2 − 1, r = √(v² + κ²) and q = (v/r)² the functions are, elementwise in κ ≥ 0,

==================== =============================================================
``log_0f1``          g = log ₀F₁(; v+1; κ²/4) = log C_D(0) − log C_D(κ)
``peak``             h = κ − g
``log_i``            log I_v(κ), in float64 alone: it crosses zero
``ratio``            A = I_{v+1}(κ)/I_v(κ) = g′
``ratio_derivative`` A′
==================== =============================================================

below ``VmfOrder.series_below`` by the power series of ₀F₁, from there on by the logarithm of Debye's series,
Σ_k c_k(q)/r^k. ``docs/numerics.md`` derives both.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# `fit_vmf` documents both.
ESTIMATORS = ("newton", "banerjee", "prism")
BIAS_CORRECTIONS = ("u", "none", "predictive")
# From Banerjee's approximation, off by 6.5 % at most (D = 2), to errors of 1e-9 (D = 2) or 1e-13 (D ≥ 8).
NEWTON_STEPS = 3
BANERJEE_ERROR = 0.1


@dataclass(frozen=True)
class FitProblem:
    """Sums and numbers of unit vectors of some classes, and how to fit a distribution to each."""

    sums: Tensor  # (C, D) float32 or float64, contiguous
    counts: Tensor  # (C,) int64 or float64, contiguous
    classes: Tensor | None  # (n,) int64, contiguous: rows of both; None: all
    dim: int  # of the sphere
    estimator: str  # of ESTIMATORS
    bias_correction: str  # of BIAS_CORRECTIONS

    @property
    def number(self) -> int:
        """The number of classes to fit, n."""
        return len(self.sums if self.classes is None else self.classes)

    @property
    def order(self) -> float:
        """The order v of the Bessel function."""
        return self.dim / 2 - 1

    @property
    def largest(self) -> float:
        """The upper bound of R̄²; equal vectors, with R̄ = 1, would have κ = ∞."""
        return (1 - torch.finfo(self.sums.dtype).eps / 2) ** 2


class Fitted(NamedTuple):
    """The fit of each class."""

    kappa: Tensor  # (n,) dtype of the sums; 0 for one vector or none
    log_peak: Tensor  # (n,) dtype of the sums: h(κ), the log-density at μ against the uniform distribution
    norm: Tensor  # (n,) float64: length of the sum

    @classmethod
    def empty(cls, sums: Tensor, number: int) -> "Fitted":
        """Buffers for the results, each of its own, as a registered op must return."""
        return cls(sums.new_empty(number), sums.new_empty(number), sums.new_empty(number, dtype=torch.float64))
