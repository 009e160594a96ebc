"""What a backend provides for the functions of the von Mises–Fisher distribution.

With order v = D/2 − 1, r = √(v² + κ²) and q = (v/r)² they are, elementwise in κ ≥ 0,

==================== =============================================================
``log_0f1``          g = log ₀F₁(; v+1; κ²/4) = log C_D(0) − log C_D(κ)
``peak``             h = κ − g
``log_i``            log I_v(κ), in float64 alone: it crosses zero
``ratio``            A = I_{v+1}(κ)/I_v(κ) = g′
``ratio_derivative`` A′
==================== =============================================================

below ``VmfOrder.series_below`` by the power series of ₀F₁, from there on by the logarithm of Debye's series,
Σ_k c_k(q)/r^k. ``docs/vmf.md`` derives both.
"""

from torch import Tensor


class VmfBackend:
    """What a backend provides for the von Mises–Fisher distribution."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        """``function`` of order ``v`` ≥ 0 at ``kappa`` (float64 or float32, any shape): NaN where κ < 0 or NaN."""
        raise NotImplementedError
