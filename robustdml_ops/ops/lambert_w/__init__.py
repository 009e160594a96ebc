"""Lambert's W, ProcSim's confidence and SuperLoss.

All are elementwise; they compute in float64 where the first argument is float64, else in float32, and return that type.
"""

import math
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import (
    SweepFunction,
    apply_function,
    choose,
    has_no_values,
    like_first,
    op_in_graphs,
)
from robustdml_ops.engine.validation import (
    check_elements,
    check_local,
    check_losses,
    check_number,
    check_same_device,
    is_number,
)
from robustdml_ops.ops.lambert_w.backends import BACKENDS


def lambertw(x: Tensor, *, backend: str | None = None) -> Tensor:
    """W(x), the principal branch of Lambert's W: W e^W = x, W ≥ −1. Differentiable, also twice.

    Parameters
    ----------
    x : Tensor
        Any shape, floating point, x ≥ −1/e (as the type rounds it).
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    Tensor
        As ``x``: −1 at −1/e, ∞ at ∞, NaN at NaN. Relative error below 5e-16 in float64, 4e-7 in float32. The derivative
        W/(x (1 + W)) is 1 at 0 and ∞ at −1/e.

    Raises
    ------
    ValueError
        On the CPU an x below −1/e. On a GPU, where the check would stall the stream, W is NaN instead.

    Notes
    -----
    Near −1/e by Halley's iteration for W + 1, elsewhere by Fritsch's (Fritsch, Shafer, Crowley 1973) from Winitzki's
    approximation; the number of steps is fixed.

    Examples
    --------
    >>> import math, torch
    >>> from robustdml_ops.ops import lambertw
    >>> lambertw(torch.tensor([-1 / math.e, 0.0, math.e, 1e30]))
    tensor([-1.0000,  0.0000,  1.0000, 64.9046])
    """
    check_local("x", x)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        found = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a floating-point torch.Tensor, got {found}")
    x = x if x.dtype == torch.float64 else x.float()
    check_elements(
        "x",
        x,
        lambda x: ~(x < x.new_tensor(-1 / math.e)),
        " is below -1/e, where W has no real value: clamp x to -1/e",
    )
    value: Tensor = apply_function(LambertW, x, backend or "auto")
    return value


@torch.no_grad()
def confidence(losses: Tensor, threshold: Tensor | float, lam: float, *, backend: str | None = None) -> Tensor:
    """ProcSim's confidence σ = exp(−W([(ℓ − τ)/2λ]₊)): 1 up to the threshold, falling towards 0 beyond. A constant.

    Parameters
    ----------
    losses : Tensor
        ℓ, any shape, floating point.
    threshold : Tensor or float
        τ, of a shape that broadcasts to that of ``losses``; ∞ gives σ = 1. From :func:`otsu_threshold` over ``dim``
        take ``threshold.unsqueeze(dim)``.
    lam : float
        λ > 0 and finite: large λ brings σ towards 1, small λ towards 0 beyond the threshold.
    backend : str, optional
        As in :func:`lambertw`.

    Returns
    -------
    Tensor
        As ``losses``, in [0, 1], without gradient; NaN where a loss or its threshold is NaN.

    Raises
    ------
    ValueError, TypeError
        λ that is not a positive number of the type's range; shapes, types or devices that do not fit.

    Notes
    -----
    Source: Barbany et al. (ProcSim), Eq. 3.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import confidence, otsu_threshold
    >>> losses = torch.tensor([0.1, 4.0, 0.3, 0.2, 5.0])
    >>> confidence(losses, otsu_threshold(losses).threshold, lam=1.0)
    tensor([1.0000, 0.5831, 1.0000, 1.0000, 0.4944])
    """
    losses, tau = _check_pair(losses, threshold, "threshold", lam)
    return _sigma(losses, tau, lam, backend or "auto")


def superloss(losses: Tensor, tau: Tensor | float, lam: float, *, backend: str | None = None) -> Tensor:
    """Minimum of (ℓ − τ)σ + λ log²σ over 0 < σ ≤ e. By the envelope theorem dvalue/dℓ = σ.

    Parameters
    ----------
    losses : Tensor
        ℓ, any shape, floating point.
    tau : Tensor or float
        τ, of a shape that broadcasts to that of ``losses``; a constant, such as a running mean of the losses.
    lam : float
        λ > 0 and finite.
    backend : str, optional
        As in :func:`lambertw`.

    Returns
    -------
    Tensor
        As ``losses``; differentiable in them, also twice.

    Raises
    ------
    ValueError, TypeError
        As :func:`confidence`; a ``tau`` that requires a gradient.

    Notes
    -----
    Source: Castells et al. (SuperLoss), quoted by Barbany et al. (ProcSim), Eqs. 1 and 2:
    σ = exp(−W(½ max(−2/e, (ℓ − τ)/λ))). The minimum is λ W (W + 2) where the maximum is not −2/e.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import superloss
    >>> losses = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
    >>> value = superloss(losses, tau=1.0, lam=1.0)
    >>> value
    tensor([-1.7183,  0.0000,  1.9786], grad_fn=<SuperLossMinimumBackward>)
    >>> torch.autograd.grad(value.sum(), losses)
    (tensor([2.7183, 1.0000, 0.4839]),)
    """
    losses, threshold = _check_pair(losses, tau, "tau", lam)
    if threshold.requires_grad:
        raise ValueError("tau requires a gradient, and is a constant of the loss: pass tau.detach()")
    value: Tensor
    value, _ = apply_function(SuperLossMinimum, losses, threshold, lam, backend or "auto")
    return value


def check_lam(lam: float, dtype: torch.dtype) -> None:
    """Raise unless λ and 2λ are positive numbers of the compute type."""
    limits = torch.finfo(dtype)
    # An integer may be too large for float(); NumPy's float32 warns where it meets the limits of float64.
    if not is_number(lam) or not limits.tiny <= (lam if isinstance(lam, int) else float(lam)) <= limits.max / 2:
        raise ValueError(f"lam must be a positive number in the range of {dtype}, got {lam!r}")


def _check_pair(losses: Tensor, threshold: Tensor | float, name: str, lam: float) -> tuple[Tensor, Tensor]:
    """Losses, and a threshold of one element or of their shape, in one type."""
    losses = check_losses(losses)
    check_lam(lam, losses.dtype)
    if not isinstance(threshold, Tensor):
        if not is_number(threshold):
            raise TypeError(f"{name} must be a number or a torch.Tensor, got {threshold!r}")
        check_number(name, threshold)
        return losses, losses.new_full((1,) * losses.dim(), threshold)
    check_local(name, threshold)
    check_same_device(losses=losses, **{name: threshold})
    if threshold.numel() == 1:
        threshold = threshold.reshape((1,) * losses.dim())  # its dimensions must not add to the result's
    else:
        try:
            threshold = threshold.expand(losses.shape)
        except RuntimeError:
            raise ValueError(
                f"{name} must broadcast to the shape of losses, {tuple(losses.shape)}, got {tuple(threshold.shape)}"
            ) from None
    return losses, threshold.to(losses.dtype)


@op_in_graphs("confidence")
def _sigma(losses: Tensor, threshold: Tensor, lam: float, backend: str) -> Tensor:
    """ProcSim's σ, a constant."""
    return choose(BACKENDS, backend, losses.device, losses.dtype).confidence(losses, threshold, lam)


class LambertW(SweepFunction):
    """W. Its derivative is a differentiable expression of W, which gives the second derivative."""

    @staticmethod
    @op_in_graphs("lambertw")
    def forward(x: Tensor, backend: str) -> Tensor:
        return choose(BACKENDS, backend, x.device, x.dtype).lambert_w(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Upstream times W/(x (1 + W))."""
        x, w = ctx.saved_tensors
        # e^-W is W/x; the exponential of a large W would have W times the rounding error.
        by_quotient = (x.abs() > 0.1) & (x < torch.inf)
        sigma = torch.where(by_quotient, w / torch.where(by_quotient, x, 1), torch.exp(-w))
        return upstream * sigma / (1 + w), None


class SuperLossMinimum(SweepFunction):
    """min (ℓ − τ)σ + λ log²σ over 0 < σ ≤ e, and its argmin σ, which is dvalue/dℓ."""

    @staticmethod
    @op_in_graphs("superloss", lambda losses, *_: (like_first(losses), like_first(losses)))
    def forward(losses: Tensor, tau: Tensor, lam: float, backend: str) -> tuple[Tensor, Tensor]:
        return choose(BACKENDS, backend, losses.device, losses.dtype).superloss(losses, tau, lam)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        losses, tau, *ctx.settings = inputs
        ctx.save_for_backward(losses, tau, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        losses, tau, sigma = ctx.saved_tensors
        if torch.is_grad_enabled() and not has_no_values(losses):
            # Recompute σ differentiably, for the second derivative; below the clamp it is the constant e.
            lam, backend = ctx.settings
            x = ((losses - tau) / (2 * lam)).clamp(min=-1 / math.e)
            sigma = torch.exp(-LambertW.apply(x, backend))  # type: ignore[no-untyped-call]
        return upstream * sigma, None, None, None
