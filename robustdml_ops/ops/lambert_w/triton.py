"""Lambert's W and the confidences made of it in Triton, one launch each."""

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import current, grid_of
from robustdml_ops.ops.lambert_w.problem import LambertBackend

BLOCK = 256


class TritonLambertW(LambertBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def lambert_w(self, x: Tensor) -> Tensor:
        """As :meth:`LambertBackend.lambert_w`."""
        x = x.contiguous()
        w = torch.empty_like(x)
        _launch("lambert_w", w, x, w)
        return w

    def confidence(self, losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
        """As :meth:`LambertBackend.confidence`."""
        losses, threshold = losses.contiguous(), threshold.contiguous()
        sigma = torch.empty_like(losses)
        _launch("confidence", sigma, losses, threshold, _stride(threshold), losses.new_full((1,), 2 * lam), sigma)
        return sigma

    def superloss(self, losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        """As :meth:`LambertBackend.superloss`."""
        losses, tau = losses.contiguous(), tau.contiguous()
        values, sigma = torch.empty_like(losses), torch.empty_like(losses)
        _launch("superloss", sigma, losses, tau, _stride(tau), losses.new_full((1,), lam), values, sigma)
        return values, sigma


def _stride(tensor: Tensor) -> int:
    return 0 if tensor.numel() == 1 else 1


def _launch(name: str, out: Tensor, *arguments: Tensor | int) -> None:
    from robustdml_ops.ops.lambert_w import kernels

    if out.numel():
        with current(out):
            getattr(kernels, name)[grid_of(out.numel(), BLOCK)](
                *arguments, out.numel(), BLOCK=BLOCK, enable_fp_fusion=True
            )
