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

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
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


# Constants of an order v, computed once, on the host.

# From this r = √(v² + κ²) on, the first omitted term of Debye's series is below the rounding of the type.
_RADIUS = {torch.float64: 32.0, torch.float32: 14.0}
# Terms of Debye's series below and from this order on.
_LARGE_ORDER = {torch.float64: 128.0, torch.float32: 47.0}
_DEBYE_TERMS = {torch.float64: (10, 6), torch.float32: (5, 3)}
# Below this κ the power series serves at any order: g is small there, and in Debye's form a difference of large terms.
_SMALL_KAPPA = {torch.float64: 1.0, torch.float32: 4.0}
# Terms of the power series up to κ = _RADIUS, and, where v ≥ _RADIUS, up to _SMALL_KAPPA.
_SERIES_TERMS = {torch.float64: (48, 8), torch.float32: (24, 8)}


@dataclass(frozen=True)
class VmfOrder:
    """Constants of one order in one compute type."""

    v: float
    base: float  # v, or 1 where v < 1
    constant: float  # log Γ(v+1) − (v log base − v + ½ log 2π base)
    log_scale: float  # log Γ(v+1) + v log 2
    series_below: float  # below this κ the power series serves
    debye_terms: int
    series_terms: int


@lru_cache(maxsize=256)
def vmf_order(v: float, dtype: torch.dtype) -> VmfOrder:
    """Constants of order ``v`` ≥ 0 in float64 or float32."""
    radius = _RADIUS[dtype]
    base = max(v, 1.0)
    debye_terms = _DEBYE_TERMS[dtype][v >= _LARGE_ORDER[dtype]]
    if v >= radius:
        # As many terms as Debye's series: the two cancel at κ = 0, so g keeps its relative accuracy near 0.
        constant = _stirling_series(v, debye_terms)
    elif v >= 1:
        constant = _stirling_error(v)
    else:
        constant = math.lgamma(v + 1) + v - 0.5 * math.log(2 * math.pi)
    return VmfOrder(
        v=v,
        base=base,
        constant=constant,
        log_scale=math.lgamma(v + 1) + v * math.log(2),
        series_below=max(_SMALL_KAPPA[dtype], math.sqrt(max(0.0, radius**2 - v**2))),
        debye_terms=debye_terms,
        series_terms=_SERIES_TERMS[dtype][v >= radius],
    )


@lru_cache(maxsize=1)
def log_debye_coefficients() -> tuple[tuple[Fraction, ...], ...]:
    """c_kj at [k − 1][j] for k = 1 … 10: log Σ_k U_k(p)/v^k = Σ_k L_k(p)/v^k, L_k(p) = p^k Σ_j c_kj p^2j.

    The recursion of U_k (DLMF 10.41.9), differentiated and divided by Σ U_k/v^k, becomes one for the derivatives:
    L′_{k+1} = ½ ((p² − p⁴) L′_k)′ + ½ (p² − p⁴) Σ_{i+j=k} L′_i L′_j, with L′_1 = (1 − 5p²)/8.
    """
    # L′_k = p^(k−1) d_k(p²); an array holds the coefficients of d_k, and convolve multiplies polynomials.
    one_minus = np.array([Fraction(1), Fraction(-1)])
    derivatives = [np.array([Fraction(1, 8), Fraction(-5, 8)])]
    for k in range(1, 10):
        # (p² − p⁴) L′_k = p^(k+1) (1 − p²) d_k; the derivative of p^(k+1+2j) has the factor k + 1 + 2j.
        following = np.convolve(derivatives[k - 1], one_minus) * (np.arange(k + 2) * 2 + k + 1) / 2
        for i in range(1, k):
            # p^(i−1) p^(k−i−1) (p² − p⁴) = p^k (1 − p²)
            following += np.convolve(np.convolve(derivatives[i - 1], derivatives[k - i - 1]), one_minus) / 2
        derivatives.append(following)
    return tuple(tuple(c / (k + 2 * j) for j, c in enumerate(d)) for k, d in enumerate(derivatives, start=1))


def _stirling_series(v: float, terms: int) -> float:
    """−Σ_k c_k(1)/v^k: at κ = 0 Debye's series is Stirling's."""
    return -math.fsum(float(sum(row)) / v**k for k, row in enumerate(log_debye_coefficients()[:terms], start=1))


def _stirling_error(v: float) -> float:
    """Log Γ(v+1) − (v log v − v + ½ log 2πv) for v ≥ 1, without the cancellation of the two."""
    steps = []
    while v < 20:
        steps.append((v + 0.5) * math.log1p(1 / v) - 1)
        v += 1
    return math.fsum([*steps, _stirling_series(v, 10)])
