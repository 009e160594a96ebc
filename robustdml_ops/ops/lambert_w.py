"""Lambert's W and the two confidences that are made of it: ProcSim's, and SuperLoss.

All compute elementwise in float64 where the first argument is float64, else in float32, and return that type.
"""

import math
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine import lambert_w as engine
from robustdml_ops.ops.validation import check_local, check_losses, check_same_device


def lambertw(x: Tensor, *, backend: str | None = None) -> Tensor:
    """W(x), the principal branch of Lambert's W: W e^W = x, W ≥ −1. Differentiable, also twice.

    Parameters
    ----------
    x : Tensor
        Any shape, floating point, x ≥ −1/e. What the type rounds −1/e to counts as −1/e.
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
        On the CPU an x below −1/e; on a GPU, where a look at the values would stall the stream, W is NaN there.

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
        raise TypeError(f"x must be a floating-point torch.Tensor, got {getattr(x, 'dtype', type(x).__name__)}")
    x = x if x.dtype == torch.float64 else x.float()
    _check_branch(x)
    if torch.compiler.is_compiling():
        compiled: Tensor = lambertw_op(x, backend or "auto")
        return compiled
    value: Tensor = _LambertW.apply(x, backend)  # type: ignore[no-untyped-call]
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
        As ``losses``, in [0, 1], without gradient. A NaN among the losses or thresholds is NaN here, too.

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
    if torch.compiler.is_compiling():
        compiled: Tensor = confidence_op(losses, tau, lam, backend or "auto")
        return compiled
    return engine.confidence(losses, tau, lam, backend)


def superloss(losses: Tensor, tau: Tensor | float, lam: float, *, backend: str | None = None) -> Tensor:
    """Least (ℓ − τ)σ + λ log²σ over 0 < σ ≤ e. Its derivative in ℓ is that σ, the envelope theorem says.

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
        As ``losses``. Differentiable once.

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
    tensor([-1.7183,  0.0000,  1.9786], grad_fn=<_SuperLossBackward>)
    >>> torch.autograd.grad(value.sum(), losses)
    (tensor([2.7183, 1.0000, 0.4839]),)
    """
    losses, threshold = _check_pair(losses, tau, "tau", lam)
    if threshold.requires_grad:
        raise ValueError("tau requires a gradient, and is a constant of the loss: pass tau.detach()")
    if torch.compiler.is_compiling():
        compiled: Tensor = superloss_op(losses, threshold, lam, backend or "auto")[0]
        return compiled
    value: Tensor = _SuperLoss.apply(losses, threshold, lam, backend)  # type: ignore[no-untyped-call]
    return value


def _check_branch(x: Tensor) -> None:
    """On the CPU, no x below −1/e as its type rounds it."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return
    below = x < torch.tensor(-1 / math.e, dtype=x.dtype)
    if below.any():
        where = [int(i) for i in below.nonzero()[0]]
        raise ValueError(
            f"x{where or ''} = {float(x[tuple(where)])} is below -1/e, where W has no real value: clamp x to -1/e"
        )


def check_lam(lam: float, dtype: torch.dtype) -> None:
    """λ is a positive number, and so is 2λ in the compute type."""
    limits = torch.finfo(dtype)
    if isinstance(lam, bool) or not isinstance(lam, int | float) or not limits.tiny <= lam <= limits.max / 2:
        raise ValueError(f"lam must be a positive number in the range of {dtype}, got {lam}")


def _check_pair(losses: Tensor, threshold: Tensor | float, name: str, lam: float) -> tuple[Tensor, Tensor]:
    """Losses, and a threshold of one element or of their shape, in one type."""
    losses = check_losses(losses)
    check_lam(lam, losses.dtype)
    if not isinstance(threshold, Tensor):
        return losses, losses.new_full((1,), threshold)
    check_local(name, threshold)
    check_same_device(losses=losses, **{name: threshold})
    if threshold.numel() != 1:
        try:
            threshold = threshold.expand(losses.shape)
        except RuntimeError:
            raise ValueError(
                f"{name} must broadcast to the shape of losses, {tuple(losses.shape)}, got {tuple(threshold.shape)}"
            ) from None
    return losses, threshold.to(losses.dtype)


class _LambertW(torch.autograd.Function):
    """W, whose derivative is made of W itself, so that the second comes with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, backend: str | None) -> Tensor:
        w = engine.lambert_w(x, backend)
        ctx.save_for_backward(x, w)
        return w

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return _lambertw_backward(ctx, upstream)


def _lambertw_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
    x, w = ctx.saved_tensors
    # e^-W is W/x; the exponential of a large W would have W times the rounding error.
    by_quotient = (x.abs() > 0.1) & (x < torch.inf)
    sigma = torch.where(by_quotient, w / torch.where(by_quotient, x, 1), torch.exp(-w))
    return upstream * sigma / (1 + w), None


class _SuperLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, tau: Tensor, lam: float, backend: str | None) -> Tensor:
        value, sigma = engine.superloss(losses, tau, lam, backend)
        ctx.save_for_backward(sigma)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (sigma,) = ctx.saved_tensors
        return upstream * sigma, None, None, None


# What torch.compile sees of the functions above; in eager mode nothing comes through here.


@torch.library.custom_op("robustdml_ops::lambertw", mutates_args=())
def lambertw_op(x: Tensor, backend: str) -> Tensor:
    """See :func:`lambertw`."""
    return engine.lambert_w(x, backend)


@lambertw_op.register_fake
def _(x: Tensor, backend: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _lambertw_context(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


lambertw_op.register_autograd(_lambertw_backward, setup_context=_lambertw_context)


@torch.library.custom_op("robustdml_ops::confidence", mutates_args=())
def confidence_op(losses: Tensor, threshold: Tensor, lam: float, backend: str) -> Tensor:
    """See :func:`confidence`."""
    return engine.confidence(losses, threshold, lam, backend)


@confidence_op.register_fake
def _(losses: Tensor, threshold: Tensor, lam: float, backend: str) -> Tensor:
    return torch.empty_like(losses, memory_format=torch.contiguous_format)


@torch.library.custom_op("robustdml_ops::superloss", mutates_args=())
def superloss_op(losses: Tensor, tau: Tensor, lam: float, backend: str) -> tuple[Tensor, Tensor]:
    """See :func:`superloss`; also returns σ."""
    return engine.superloss(losses, tau, lam, backend)


@superloss_op.register_fake
def _(losses: Tensor, tau: Tensor, lam: float, backend: str) -> tuple[Tensor, Tensor]:
    return (
        torch.empty_like(losses, memory_format=torch.contiguous_format),
        torch.empty_like(losses, memory_format=torch.contiguous_format),
    )


def _superloss_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _superloss_backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    (sigma,) = ctx.saved_tensors
    return upstream * sigma, None, None, None


superloss_op.register_autograd(_superloss_backward, setup_context=_superloss_context)
