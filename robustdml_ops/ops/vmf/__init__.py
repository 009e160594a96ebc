"""The von Mises–Fisher distribution on the unit sphere of D dimensions: log p(x) = log C_D(κ) + κ μ·x.

All functions of κ compute elementwise in float64 where κ is float64, else in float32, and return that type. On the CPU
a negative κ or NaN is an error; on a GPU, where a look at the values would stall the stream, it gives NaN.
"""

import math
import numbers
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import (
    SweepFunction,
    apply_function,
    choose,
    op_in_graphs,
    refuse_tracing,
    without_autocast,
)
from robustdml_ops.engine.validation import (
    check_elements,
    check_local,
    check_matrix,
    check_number,
    check_same_device,
    check_vector,
)
from robustdml_ops.ops.vmf.backends import BACKENDS

_LARGEST_ORDER = 1e9  # its square is a float32


def log_bessel_i(v: float, kappa: Tensor, *, backend: str | None = None) -> Tensor:
    """Log I_v(κ), the logarithm of the modified Bessel function of the first kind; differentiable in κ.

    Parameters
    ----------
    v : float
        Order, 0 ≤ v ≤ 10⁹; not only halves. One for all κ.
    kappa : Tensor
        κ ≥ 0, any shape, floating point or integers.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    Tensor
        As ``kappa``. −∞ at κ = 0 (0 for v = 0), ∞ at κ = ∞; between them finite, also where I_v itself, or e^−κ I_v,
        is not. Computed in float64 for any input: near its zero the function is the difference of two numbers of size
        v. The error is below 1e-15 max(v, κ, |log I_v|), or half an ulp of float32.

    Raises
    ------
    ValueError
        An order out of range; on the CPU a κ that is negative or NaN.

    Notes
    -----
    Power series for small κ, the logarithm of Debye's uniform series otherwise; ``docs/numerics.md``. The derivative is
    A + v/κ with A = :func:`bessel_ratio`.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import log_bessel_i
    >>> log_bessel_i(255, torch.tensor([1.0, 10.0]))  # scipy's log(ive(255, 1.0)) is -inf
    tensor([-1338.4636,  -751.2078])
    """
    kappa = _check_kappa(kappa)
    order = _check_order(v)
    return vmf("log_i", order, kappa.double(), backend).to(kappa.dtype)


def bessel_ratio(v: float, kappa: Tensor, *, backend: str | None = None) -> Tensor:
    """A = I_{v+1}(κ) / I_v(κ), in [0, 1): with v = D/2 − 1 the mean length of what a κ draws; differentiable in κ.

    Its relative error is below 1e-14 in float64, 3e-7 in float32. Arguments and errors are as in :func:`log_bessel_i`.

    Returns
    -------
    Tensor
        As ``kappa``: 0 at κ = 0, 1 at κ = ∞.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import bessel_ratio
    >>> bessel_ratio(63, torch.tensor([0.0, 537.0]))  # D = 128
    tensor([0.0000, 0.8886])
    """
    kappa = _check_kappa(kappa)
    return vmf("ratio", _check_order(v), kappa, backend)


def vmf_log_normalizer(dim: int, kappa: Tensor, *, backend: str | None = None) -> Tensor:
    """Log C_D(κ) with C_D(κ) = κ^(D/2−1) / ((2π)^(D/2) I_{D/2−1}(κ)); differentiable in κ.

    Parameters
    ----------
    dim : int
        Dimension D ≥ 2 of the vectors.
    kappa, backend
        As in :func:`log_bessel_i`.

    Returns
    -------
    Tensor
        As ``kappa``: minus the logarithm of the sphere's area at κ = 0, −∞ at κ = ∞. Computed in float64.

    Raises
    ------
    ValueError
        A dimension below 2; on the CPU a κ that is negative or NaN.

    Notes
    -----
    Source: Liu et al. (PRISM), Eq. 11. log C_D(0) is common to all κ and large, so where densities are compared in
    float32 leave it out: :func:`vmf_log_peak` and :func:`vmf_log_likelihood` do.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import vmf_log_normalizer
    >>> vmf_log_normalizer(3, torch.tensor([0.0, 1.0]))  # −log 4π, −log(4π sinh 1)
    tensor([-2.5310, -2.6925])
    """
    order = _check_dim(dim)
    kappa = _check_kappa(kappa)
    at_zero = math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)
    return (at_zero - vmf("log_0f1", order, kappa.double(), backend)).to(kappa.dtype)


def vmf_log_peak(dim: int, kappa: Tensor, *, backend: str | None = None) -> Tensor:
    """H = log C_D(κ) − log C_D(0) + κ: the log-density at μ, against the uniform distribution; differentiable in κ.

    In the type of κ, with a relative error of a few ulp: it grows like (D − 1)/2 · log κ, while κ and log C_D(κ), whose
    sum it is, grow like κ. Arguments and errors are as in :func:`vmf_log_normalizer`.

    Returns
    -------
    Tensor
        As ``kappa``: 0 at κ = 0, ∞ at κ = ∞.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import vmf_log_peak
    >>> vmf_log_peak(128, torch.tensor([0.0, 537.0, 1e6]))
    tensor([  0.0000, 159.0967, 633.5282])
    """
    order = _check_dim(dim)
    return vmf("peak", order, _check_kappa(kappa), backend)


def vmf_log_likelihood(x: Tensor, mean_direction: Tensor, kappa: Tensor, *, backend: str | None = None) -> Tensor:
    """Log-density of every row of x under every class, against the uniform distribution: h_k − κ_k (1 − μ_k·x).

    Differentiable in all three. Add ``vmf_log_normalizer(D, 0)`` for the density per unit of area; a softmax over the
    classes needs nothing added.

    Parameters
    ----------
    x, mean_direction : Tensor
        (B, D) and (C, D), floating point, D ≥ 2; unit rows, not normalised here. A row of ``mean_direction`` may be
        zero where κ is 0.
    kappa : Tensor
        (C,), κ ≥ 0 and finite.
    backend : str, optional
        As in :func:`log_bessel_i`.

    Returns
    -------
    Tensor
        (B, C), float64 if an input is, else float32. Every term stays of the size of the result, so float32 suffices:
        log C_D(κ) + κ μ·x would be a difference of numbers of size κ.

    Raises
    ------
    ValueError, TypeError
        Shapes, types or devices that do not fit; on the CPU a κ that is negative, infinite or NaN.

    Notes
    -----
    Source: Liu et al. (PRISM), Eqs. 10 and 11, divided by the uniform density.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import vmf_log_likelihood
    >>> vmf_log_likelihood(torch.eye(3)[:1], torch.eye(3), torch.tensor([50.0, 50.0, 0.0]))
    tensor([[  4.6052, -45.3948,   0.0000]])
    """
    refuse_tracing()
    check_matrix("x", x)
    check_matrix("mean_direction", mean_direction, columns=x.shape[1])
    check_vector("kappa", kappa, len(mean_direction))
    check_same_device(x=x, mean_direction=mean_direction, kappa=kappa)
    dtype = torch.float64 if torch.float64 in (x.dtype, mean_direction.dtype, kappa.dtype) else torch.float32
    kappa = kappa.to(dtype)
    way_out = ": all of the density is in one point, and it must be finite"
    check_elements("kappa", kappa, lambda kappa: kappa != math.inf, way_out)
    with without_autocast(x.device):
        cosine = x.to(dtype) @ mean_direction.to(dtype).t()
        return vmf_log_peak(x.shape[1], kappa, backend=backend) - kappa * (1 - cosine)


def _check_order(v: float) -> float:
    check_number("v", v)
    if not 0 <= v <= _LARGEST_ORDER:
        raise ValueError(f"v must be between 0 and {_LARGEST_ORDER:g}, got {v}")
    return float(v)


def _check_dim(dim: int) -> float:
    """The order D/2 − 1."""
    if isinstance(dim, bool) or not isinstance(dim, (int, numbers.Integral)) or not 2 <= dim <= _LARGEST_ORDER:
        raise ValueError(f"dim must be an integer from 2 to {_LARGEST_ORDER:g}, got {dim}: one value has no direction")
    return int(dim) / 2 - 1


def _check_kappa(kappa: object) -> Tensor:
    """``kappa``, checked, in the type of the computation."""
    check_local("kappa", kappa)
    if not isinstance(kappa, Tensor):
        raise TypeError(f"kappa must be a torch.Tensor, not {type(kappa).__name__}: pass torch.tensor({kappa})")
    if kappa.is_complex() or kappa.dtype == torch.bool:
        raise ValueError(f"kappa must be real numbers, got {kappa.dtype}")
    check_elements("kappa", kappa, lambda kappa: kappa >= 0, ": it must be at least 0, and not NaN")
    return kappa if kappa.dtype == torch.float64 else kappa.float()


def vmf(function: str, order: float, kappa: Tensor, backend: str | None) -> Tensor:
    """A function of the table of ``problem.py``, differentiable twice, and "ratio" once."""
    value: Tensor = apply_function(Vmf, kappa, function, order, backend or "auto")
    return value


class Vmf(SweepFunction):
    """One function of κ, whose derivative is made of others."""

    @staticmethod
    @op_in_graphs("vmf")
    def forward(kappa: Tensor, function: str, order: float, backend: str) -> Tensor:
        return choose(BACKENDS, backend, kappa.device, kappa.dtype).evaluate_vmf(function, order, kappa)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str, float, str], output: Tensor) -> None:
        kappa, *ctx.settings = inputs
        ctx.save_for_backward(kappa)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (kappa,) = ctx.saved_tensors
        function, order, backend = ctx.settings
        if function == "ratio_derivative":
            raise RuntimeError("the Bessel ratio can be differentiated once: detach kappa before asking for more")
        if function == "ratio":
            derivative = vmf("ratio_derivative", order, kappa, backend)
        else:
            derivative = vmf("ratio", order, kappa, backend)
            if function == "peak":
                derivative = 1 - derivative
            elif function == "log_i" and order > 0:
                derivative = derivative + order / kappa
        return upstream * derivative, None, None, None
