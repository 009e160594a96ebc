"""The interface of the backends, elementwise in float64 or float32, and the buffers of the compiled ones."""

import torch
from torch import Tensor


class LambertBackend:
    """The functions of a backend."""

    def lambert_w(self, x: Tensor) -> Tensor:
        """W(x), the principal branch: NaN where x is NaN or below −1/e as the type rounds it."""
        raise NotImplementedError

    def confidence(self, losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
        """exp(−W([(ℓ − τ)/2λ]₊)), 1 where τ is ∞; ``threshold`` has one element, or the shape of ``losses``."""
        raise NotImplementedError

    def superloss(self, losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        """λ W (W + 2) with x = (ℓ − τ)/2λ, and σ = e^−W; below x = −1/e, σ is e. ``tau`` as ``threshold``."""
        raise NotImplementedError


class CompiledLambertW(LambertBackend):
    """A backend whose kernels read contiguous inputs and fill buffers."""

    def run(self, name: str, inputs: list[Tensor], lam: float | None, outputs: list[Tensor]) -> None:
        """Run the kernel ``name``; the second of ``inputs`` may have one element, the others have those of outputs."""
        raise NotImplementedError

    def lambert_w(self, x: Tensor) -> Tensor:
        """W(x)."""
        x = x.contiguous()
        w = torch.empty_like(x)
        self.run("lambert_w", [x], None, [w])
        return w

    def confidence(self, losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
        """σ."""
        losses, threshold = losses.contiguous(), threshold.contiguous()
        sigma = torch.empty_like(losses)
        self.run("confidence", [losses, threshold], lam, [sigma])
        return sigma

    def superloss(self, losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        """The minimum and σ."""
        losses, tau = losses.contiguous(), tau.contiguous()
        values, sigma = torch.empty_like(losses), torch.empty_like(losses)
        self.run("superloss", [losses, tau], lam, [values, sigma])
        return values, sigma


def stride_of(threshold: Tensor) -> int:
    """0 for one threshold for all losses, else 1."""
    return 0 if threshold.numel() == 1 else 1
