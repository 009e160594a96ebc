"""Lambert's W and the confidences made of it in Triton, one launch each."""

import torch
from torch import Tensor

from robustdml_ops.engine.triton.device import current, grid_of

BLOCK = 256


def lambert_w(x: Tensor) -> Tensor:
    """W(x) for x from −1/e on; NaN elsewhere."""
    x = x.contiguous()
    w = torch.empty_like(x)
    _launch("lambert_w", w, x, w)
    return w


def confidence(losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
    """exp(−W([(ℓ − τ)/2λ]₊)); 1 where τ is ∞."""
    losses, threshold = losses.contiguous(), threshold.contiguous()
    sigma = torch.empty_like(losses)
    _launch("confidence", sigma, losses, threshold, _stride(threshold), losses.new_full((1,), 2 * lam), sigma)
    return sigma


def superloss(losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """λ W (W + 2) with x = (ℓ − τ)/2λ, and σ = e^−W; below x = −1/e, σ is e."""
    losses, tau = losses.contiguous(), tau.contiguous()
    values, sigma = torch.empty_like(losses), torch.empty_like(losses)
    _launch("superloss", sigma, losses, tau, _stride(tau), losses.new_full((1,), lam), values, sigma)
    return values, sigma


def _stride(tensor: Tensor) -> int:
    return 0 if tensor.numel() == 1 else 1


def _launch(name: str, out: Tensor, *arguments: Tensor | int) -> None:
    from robustdml_ops.engine.triton.kernels import lambert_w as kernels

    if out.numel():
        with current(out):
            getattr(kernels, name)[grid_of(out.numel(), BLOCK)](
                *arguments, out.numel(), BLOCK=BLOCK, enable_fp_fusion=True
            )
