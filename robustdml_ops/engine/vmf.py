"""The special functions of the von Mises–Fisher distribution, by the backend that serves the device.

With order v = D/2 − 1, r = √(v² + κ²) and q = (v/r)² the backends evaluate, elementwise in κ ≥ 0,

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

from robustdml_ops.engine.dispatch import choose


def evaluate(function: str, v: float, kappa: Tensor, backend: str | None) -> Tensor:
    """``function`` of order ``v`` ≥ 0 at ``kappa`` (float64 or float32, any shape): NaN where κ is negative or NaN.

    ``backend`` and errors as in :func:`robustdml_ops.engine.dispatch.choose`. Not differentiable.
    """
    return choose(backend, kappa.device, kappa.dtype).evaluate_vmf(function, v, kappa)
