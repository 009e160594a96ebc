"""What a backend provides for Lambert's W and the confidences made of it; elementwise, float64 or float32."""

from torch import Tensor


class LambertBackend:
    """What a backend provides for Lambert's W."""

    def lambert_w(self, x: Tensor) -> Tensor:
        """W(x), the principal branch: NaN where x is NaN or below −1/e as the type rounds it."""
        raise NotImplementedError

    def confidence(self, losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
        """exp(−W([(ℓ − τ)/2λ]₊)), 1 where τ is ∞; ``threshold`` has one element, or the shape of ``losses``."""
        raise NotImplementedError

    def superloss(self, losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        """λ W (W + 2) with x = (ℓ − τ)/2λ, and σ = e^−W; below x = −1/e, σ is e. ``tau`` as ``threshold``."""
        raise NotImplementedError
