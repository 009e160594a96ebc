"""Lambert's W and the confidences made of it: in plain PyTorch, and by one call or launch of a compiled function each.

``csrc/math/lambert_w.h`` explains the regions.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.triton_device import current, grid_of

# 1/e rounded to the type, and the remainder.
_BRANCH = {torch.float64: (0.36787944117144233, -1.2428753672788363e-17), torch.float32: (0.36787945, -9.1497552e-9)}
_SERIES_TERMS = {torch.float64: 17, torch.float32: 10}
_STEPS = {torch.float64: (2, 2), torch.float32: (1, 1)}  # steps of Halley's and of Fritsch's iteration
_TINY = {torch.float64: 1e-5, torch.float32: 1e-3}
BLOCK = 256  # elements of a program


class EagerLambertW:
    """On every device, without a compiler; elementwise in float64 or float32."""

    def lambert_w(self, x: Tensor) -> Tensor:
        """W(x), the principal branch: NaN where x is NaN or below −1/e as the type rounds it."""
        return _with_sigma(x)[0]

    def confidence(self, losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
        """exp(−W([(ℓ − τ)/2λ]₊)), 1 where τ is ∞; ``threshold`` has one element, or the shape of ``losses``."""
        above = losses > threshold
        sigma = _with_sigma(torch.where(above, (losses - threshold) / (2 * lam), 0))[1]
        return torch.where(losses.isnan() | threshold.isnan(), torch.nan, sigma)

    def superloss(self, losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        """λ W (W + 2) with x = (ℓ − τ)/2λ, and σ = e^−W; below x = −1/e, σ is e. ``tau`` as ``threshold``."""
        excess = losses - tau
        x = excess / (2 * lam)
        branch = -_BRANCH[x.dtype][0]
        clamped = x < branch
        w, sigma = _with_sigma(torch.where(clamped, branch, x))
        return (
            torch.where(clamped, excess * math.e + lam, lam * w * (w + 2)),
            torch.where(clamped, math.e, sigma),
        )


def _with_sigma(x: Tensor) -> tuple[Tensor, Tensor]:
    """W and e^−W = W/x."""
    finite = x.clamp(max=torch.finfo(x.dtype).max)
    tiny, near = finite.abs() < _TINY[x.dtype], finite < -0.25
    w = torch.where(near, _near_branch(finite), _beyond_branch(torch.where(tiny | near, 1, finite)))
    series = 1 - x * (1 - x * (1.5 - x * (8 / 3)))
    infinite, outside = x == torch.inf, ~(x >= -_BRANCH[x.dtype][0])
    sigma = torch.where(infinite, 0, torch.where(tiny, series, w / finite))
    w = torch.where(infinite, x, torch.where(tiny, x * series, w))
    return torch.where(outside, torch.nan, w), torch.where(outside, torch.nan, sigma)


def _near_branch(x: Tensor) -> Tensor:
    """W for x in [−1/e, −1/4], by W + 1."""
    high, low = _BRANCH[x.dtype]
    eq = ((x.clamp(max=-0.25) + high) + low).clamp(min=0) * math.e
    p = torch.sqrt(2 * eq)
    d = p * (1 - p * (1 / 3 - p * (11 / 72 - p * (43 / 540 - p * (769 / 17280)))))
    w = d - 1
    for _ in range(_STEPS[x.dtype][0]):
        series = torch.zeros_like(d)
        for k in reversed(range(_SERIES_TERMS[x.dtype])):
            series = series * d + (k + 1) / math.factorial(k + 2)
        value = d * d * series
        f = value - eq
        divisor = 2 * d * d * (1 - value) / (1 - d) - f * (d + 1)
        step = torch.where(divisor > 0, 2 * f * d / divisor, 0)
        d, w = d - step, (d - 1) - step
    return w


def _beyond_branch(x: Tensor) -> Tensor:
    """W for finite x ≥ −1/4 that is not tiny."""
    # PyTorch 2.6 has log1p(x) = inf near the type's largest number; a start of the iteration need not be exact.
    log1p = torch.log1p(x.clamp(max=torch.finfo(x.dtype).max / 32))
    w = log1p * (1 - torch.log1p(log1p) / (2 + log1p))
    for _ in range(_STEPS[x.dtype][1]):
        z = torch.log(x / w) - w
        s = 1 + w
        q = 2 * s * (s + z * (2 / 3))
        w = w + w * (z / s) * ((q - z) / (q - 2 * z))
    return w


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
