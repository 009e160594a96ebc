"""Lambert's W and the confidences made of it, by the backend that serves the device; elementwise, not differentiable.

``backend`` and errors as in :func:`robustdml_ops.engine.dispatch.choose`. All tensors are float64 or float32.
"""

from torch import Tensor

from robustdml_ops.engine.dispatch import choose


def lambert_w(x: Tensor, backend: str | None) -> Tensor:
    """W(x), the principal branch: NaN where x is NaN or below −1/e as the type rounds it."""
    return choose(backend, x.device, x.dtype).lambert_w(x)


def confidence(losses: Tensor, threshold: Tensor, lam: float, backend: str | None) -> Tensor:
    """exp(−W([(ℓ − τ)/2λ]₊)); ``threshold`` has one element, or the shape of ``losses``."""
    return choose(backend, losses.device, losses.dtype).confidence(losses, threshold, lam)


def superloss(losses: Tensor, tau: Tensor, lam: float, backend: str | None) -> tuple[Tensor, Tensor]:
    """Least (ℓ − τ)σ + λ log²σ over 0 < σ ≤ e, and its σ; ``tau`` has one element, or the shape of ``losses``."""
    return choose(backend, losses.device, losses.dtype).superloss(losses, tau, lam)
