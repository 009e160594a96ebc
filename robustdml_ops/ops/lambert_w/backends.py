"""Backends of Lambert's W and the confidences made of it: one call or launch of a compiled function each."""

from collections.abc import Callable

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.triton_device import current, grid_of
from robustdml_ops.ops.lambert_w.eager import EagerLambertW

BLOCK = 256


class CompiledLambertW(EagerLambertW):
    """``run(name, contiguous inputs, λ, outputs)`` calls a kernel; the second input may have one element."""

    def __init__(self, run: Callable[[str, list[Tensor], float | None, list[Tensor]], None]) -> None:
        self.run = run

    def lambert_w(self, x: Tensor) -> Tensor:
        return self._filled(1, "lambert_w", None, x)[0]

    def confidence(self, losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
        return self._filled(1, "confidence", lam, losses, threshold)[0]

    def superloss(self, losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        values, sigma = self._filled(2, "superloss", lam, losses, tau)
        return values, sigma

    def _filled(self, results: int, name: str, lam: float | None, *inputs: Tensor) -> list[Tensor]:
        contiguous = [tensor.contiguous() for tensor in inputs]
        outputs = [torch.empty_like(contiguous[0]) for _ in range(results)]
        self.run(name, contiguous, lam, outputs)
        return outputs


def _run_native(name: str, inputs: list[Tensor], lam: float | None, outputs: list[Tensor]) -> None:
    module.call(name, outputs[0], *inputs, *_settings(inputs, lam), *outputs, outputs[0].numel())


def _run_triton(name: str, inputs: list[Tensor], lam: float | None, outputs: list[Tensor]) -> None:
    from robustdml_ops.ops.lambert_w import kernels

    out = outputs[0]
    settings: list[float | Tensor] = list(_settings(inputs, lam))
    if lam is not None:  # a tensor, so that no value of it is compiled in
        settings[1] = out.new_full((1,), 2 * lam if name == "confidence" else lam)
    if out.numel():
        with current(out):
            getattr(kernels, name)[grid_of(out.numel(), BLOCK)](
                *inputs, *settings, *outputs, out.numel(), BLOCK=BLOCK, enable_fp_fusion=True
            )


def _settings(inputs: list[Tensor], lam: float | None) -> tuple[int | float, ...]:
    """Stride of the thresholds, 0 where there is one for all losses, and λ."""
    return () if lam is None else (0 if inputs[1].numel() == 1 else 1, lam)


BACKENDS: dict[str, EagerLambertW] = {
    "native": CompiledLambertW(_run_native),
    "triton": CompiledLambertW(_run_triton),
    "eager": EagerLambertW(),
}
