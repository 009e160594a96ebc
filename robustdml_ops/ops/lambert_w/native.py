"""Lambert's W and the confidences made of it in the native module (``csrc/math/lambert_w.h``), on CPU and GPU."""

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.ops.lambert_w.problem import LambertBackend


class NativeLambertW(LambertBackend):
    """On the CPU and on CUDA devices."""

    def lambert_w(self, x: Tensor) -> Tensor:
        """As :meth:`LambertBackend.lambert_w`."""
        x = x.contiguous()
        w = torch.empty_like(x)
        _call("lambert_w", w, x.data_ptr(), w.data_ptr())
        return w

    def confidence(self, losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
        """As :meth:`LambertBackend.confidence`."""
        losses, threshold = losses.contiguous(), threshold.contiguous()
        sigma = torch.empty_like(losses)
        addresses = (losses.data_ptr(), threshold.data_ptr(), _stride(threshold), lam)
        _call("confidence", sigma, *addresses, sigma.data_ptr())
        return sigma

    def superloss(self, losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        """As :meth:`LambertBackend.superloss`."""
        losses, tau = losses.contiguous(), tau.contiguous()
        values, sigma = torch.empty_like(losses), torch.empty_like(losses)
        addresses = (losses.data_ptr(), tau.data_ptr(), _stride(tau), lam)
        _call("superloss", sigma, *addresses, values.data_ptr(), sigma.data_ptr())
        return values, sigma


def _stride(tensor: Tensor) -> int:
    return 0 if tensor.numel() == 1 else 1


def _call(name: str, out: Tensor, *arguments: int | float) -> None:
    suffix = module.SUFFIX[out.dtype]
    if module.on_gpu(out):
        with module.current_stream(out.device) as stream:
            getattr(module.library, f"{name}_cuda_{suffix}")(*arguments, out.numel(), stream)
    else:
        getattr(module.library, f"{name}_{suffix}")(*arguments, out.numel(), torch.get_num_threads())
