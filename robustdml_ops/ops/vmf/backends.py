"""The von Mises–Fisher functions in PyTorch, in ``csrc/math/vmf.h`` and in Triton."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.triton_device import block_of, current, grid_of, launch
from robustdml_ops.ops.vmf.problem import (
    BANERJEE_ERROR,
    BIAS_CORRECTIONS,
    ESTIMATORS,
    NEWTON_STEPS,
    FitProblem,
    Fitted,
    VmfOrder,
    log_debye_coefficients,
    vmf_order,
)

_TOGETHER = 65_536  # classes to fit at a time
BLOCK = 256


class EagerVmf:
    """On every device, without a compiler."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        """``function`` of order ``v`` ≥ 0 at ``kappa`` (float64 or float32, any shape): NaN where κ < 0 or NaN."""
        order = vmf_order(v, kappa.dtype)
        finite = kappa.clamp(max=torch.finfo(kappa.dtype).max)
        small = finite < order.series_below
        value = torch.where(
            small,
            # In float64: without fused multiply-adds, two dozen float32 terms would lose too many digits.
            _by_series(function, finite.double().clamp(max=order.series_below), order).to(kappa.dtype),
            _by_debye(function, finite.clamp(min=order.series_below), order),
        )
        if function not in ("ratio", "ratio_derivative"):
            value = torch.where(kappa == torch.inf, kappa, value)
        return torch.where(kappa >= 0, value, torch.nan)

    def fit(self, problem: FitProblem) -> Fitted:
        """Fit every class, κ in float64; NaN where a sum has NaN. At most 65,536 classes at a time to bound memory."""
        if problem.number > _TOGETHER:
            device, classes = problem.sums.device, problem.classes
            classes = torch.arange(problem.number, device=device) if classes is None else classes
            slices = [self.fit(replace(problem, classes=some)) for some in torch.split(classes, _TOGETHER)]
            return Fitted(*map(torch.cat, zip(*slices, strict=True)))
        sums, counts, classes = problem.sums, problem.counts, problem.classes
        if classes is not None:
            sums, counts = sums.index_select(0, classes), counts[classes]
        norm, n = torch.linalg.vector_norm(sums, dim=1, dtype=torch.float64), counts.double()
        squared_length = (norm / n.clamp(min=1)).square()
        if problem.bias_correction != "none":
            tiny = torch.finfo(torch.float64).tiny
            unbiased = ((n * squared_length - 1) / (n - 1).clamp(min=tiny)).clamp(min=0)
            # A new x has x·μ̂ = A μ·μ̂ on average, and μ̂ = Σ/‖Σ‖ has μ·μ̂ = A/R̄.
            predicted = unbiased.square() / squared_length.clamp(min=tiny)
            squared_length = unbiased if problem.bias_correction == "u" else predicted
        kappa = self._concentration(squared_length.clamp(max=problem.largest), problem)
        kappa = torch.where(n > 1, kappa, 0).to(sums.dtype)
        return Fitted(kappa, self.evaluate_vmf("peak", problem.order, kappa), norm)

    def _concentration(self, squared_length: Tensor, problem: FitProblem) -> Tensor:
        """κ of a mean length R̄ below 1; (n,) float64."""
        length = squared_length.sqrt()
        start = length * (problem.dim - (length if problem.estimator == "prism" else squared_length))
        start = start / (1 - squared_length)
        if problem.estimator != "newton":
            return start
        kappa = start
        # Where R̄ is within rounding of 1, the excess is noise: stay near the start, which is as exact as R̄.
        least, largest = (1 - BANERJEE_ERROR) * start, (1 + BANERJEE_ERROR) * start
        for _ in range(NEWTON_STEPS):
            excess = self.evaluate_vmf("ratio", problem.order, kappa) - length
            slope = self.evaluate_vmf("ratio_derivative", problem.order, kappa)
            kappa = torch.clamp(kappa - excess / slope, least, largest)
        return kappa


def _debye(r: Tensor, order: VmfOrder, weight: Callable[[int, int], int] = lambda k, j: 1) -> Tensor:
    """Σ_k r^−k Σ_j weight(k, j) c_kj q^j."""
    inverse, q = 1 / r, (order.v / r) ** 2
    total = torch.zeros_like(r)
    for k in range(order.debye_terms, 0, -1):
        row = torch.zeros_like(r)
        for j, c in reversed(list(enumerate(log_debye_coefficients()[k - 1]))):
            row = row * q + float(c * weight(k, j))
        total = (total + row) * inverse
    return total


def _power_series(kappa: Tensor, v: float, first: int, last: int) -> Tensor:
    """₀F₁(; v+1; κ²/4) from the term ``first`` − 1 on, divided by that term."""
    z = kappa * kappa / 4
    total = torch.ones_like(kappa)
    for n in range(last, first - 1, -1):
        total = 1 + z * (1 / (n * (v + n))) * total
    return total


def _by_series(function: str, kappa: Tensor, order: VmfOrder) -> Tensor:
    v, terms = order.v, order.series_terms
    if function in ("ratio", "ratio_derivative"):
        F0, F1 = (_power_series(kappa, v + shift, 1, terms) for shift in range(2))
        by_kappa = F1 / F0 / (2 * (v + 1))
        ratio = kappa * by_kappa
        if function == "ratio":
            return ratio
        next_ratio = kappa * _power_series(kappa, v + 2, 1, terms) / F1 / (2 * (v + 2))
        return by_kappa + ratio * (next_ratio - ratio)
    log_0f1 = torch.log1p(kappa * kappa / (4 * (v + 1)) * _power_series(kappa, v, 2, terms))
    if function == "peak":
        return kappa - log_0f1
    return log_0f1 if function == "log_0f1" else torch.xlogy(v, kappa) - order.log_scale + log_0f1


def _by_debye(function: str, kappa: Tensor, order: VmfOrder) -> Tensor:
    v, base = order.v, order.base
    # CUDA's hypot overflows at the largest κ.
    squarable = kappa.clamp(max=1e150 if kappa.dtype == torch.float64 else 1e18)
    r = (v * v + squarable * squarable).sqrt() + (kappa - squarable)
    if function in ("ratio", "ratio_derivative"):
        first = (0.5 + _debye(r, order, lambda k, j: k + 2 * j)) / r
        if function == "ratio":
            return kappa / (v + r) - kappa / r * first
        second = _debye(r, order, lambda k, j: (k + 2 * j) * (k + 2 + 2 * j))
        return v / r / (v + r) - first / r + (kappa / r / r) ** 2 * (1 + second)
    series = _debye(r, order)
    if function == "log_i":
        return r + torch.xlogy(v, kappa / (v + r)) - 0.5 * (math.log(2 * math.pi) + torch.log(r)) + series
    series += order.constant
    # g is δ = r − v less these logarithms, and the series.
    delta, excess = kappa * (kappa / (r + v)), (v - base) / base
    logs = v * torch.log1p(delta / (2 * base) + excess) + 0.5 * torch.log1p(delta / base + excess)
    if function == "log_0f1":
        return delta - logs + series
    return 2 * v / (1 + (v + r) / kappa) + logs - series


class NativeVmf(EagerVmf):
    """On the CPU and on CUDA devices."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        values = kappa.contiguous()
        out = torch.empty_like(values)
        module.call(f"vmf_{function}", out, _native_order(module.library, v, kappa.dtype), values, out, out.numel())
        return out

    def fit(self, problem: FitProblem) -> Fitted:
        dtype, fitted = problem.sums.dtype, Fitted.empty(problem.sums, problem.number)
        whole = problem.counts.dtype == torch.int64
        classes = getattr(module.library, f"VmfClasses_{module.SUFFIX[dtype]}")(
            sums=problem.sums.data_ptr(),
            D=problem.sums.shape[1],
            counts=problem.counts.data_ptr() if whole else 0,
            fractions=0 if whole else problem.counts.data_ptr(),
            classes=module.address(problem.classes),
            n=problem.number,
            dim=float(problem.dim),
            largest=problem.largest,
            estimator=ESTIMATORS.index(problem.estimator),
            correction=BIAS_CORRECTIONS.index(problem.bias_correction),
            **module.addresses(fitted._asdict()),
        )
        orders = (_native_order(module.library, problem.order, each) for each in (torch.float64, dtype))
        module.call("vmf_fit", problem.sums, classes, *orders)
        return fitted


@lru_cache(maxsize=256)
def _native_order(library: Any, v: float, dtype: torch.dtype) -> Any:
    """The order as a struct of the module; cached, since making it takes longer than the functions of a batch."""
    return getattr(library, f"VmfOrder_{module.SUFFIX[dtype]}")(**asdict(vmf_order(v, dtype)))


class TritonVmf(EagerVmf):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        from robustdml_ops.ops.vmf.kernels import vmf as kernel

        values = kappa.contiguous()
        out = torch.empty_like(values)
        if out.numel():
            with current(out):
                kernel[grid_of(out.numel(), BLOCK)](
                    values, out, out.numel(), function, vmf_order(v, kappa.dtype), BLOCK, enable_fp_fusion=True
                )
        return out

    def fit(self, problem: FitProblem) -> Fitted:
        from robustdml_ops.ops.vmf.kernels import vmf_fit as kernel

        D, dtype, fitted = problem.sums.shape[1], problem.sums.dtype, Fitted.empty(problem.sums, problem.number)
        if problem.number:
            # Four classes a warp: a batch of 256 touches 512 classes, hence 128 programs.
            parameters = launch(BLOCK_R=4, BLOCK_D=block_of(D, 128), num_warps=1, num_stages=1)
            classes = (problem.sums, problem.counts, problem.classes)
            settings = (float(problem.dim), problem.largest, problem.estimator, problem.bias_correction)
            orders = (vmf_order(problem.order, each) for each in (dtype, torch.float64))
            with current(problem.sums):
                kernel[grid_of(problem.number, 4)](
                    *classes, *fitted, problem.number, D, *settings, *orders, **parameters
                )
        return fitted


BACKENDS: dict[str, EagerVmf] = {"native": NativeVmf(), "triton": TritonVmf(), "eager": EagerVmf()}
