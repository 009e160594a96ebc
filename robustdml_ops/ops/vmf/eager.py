"""The functions of the von Mises–Fisher distribution in plain PyTorch: every device, no compiler."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from robustdml_ops.ops.vmf.order import VmfOrder, log_debye_coefficients, vmf_order
from robustdml_ops.ops.vmf.problem import BANERJEE_ERROR, NEWTON_STEPS, FitProblem, Fitted, VmfBackend

_TOGETHER = 65_536  # classes to fit at a time


class EagerVmf(VmfBackend):
    """On every device, without a compiler."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        """One function of every κ."""
        order = vmf_order(v, kappa.dtype)
        finite = kappa.clamp(max=torch.finfo(kappa.dtype).max)
        small = finite < order.series_below
        by_series, by_debye = _FUNCTIONS[function]
        value = torch.where(
            small,
            # In float64: without fused multiply-adds, two dozen float32 terms would lose too many digits.
            by_series(finite.double().clamp(max=order.series_below), order).to(kappa.dtype),
            by_debye(finite.clamp(min=order.series_below), order),
        )
        if function not in ("ratio", "ratio_derivative"):
            value = torch.where(kappa == torch.inf, kappa, value)
        return torch.where(kappa >= 0, value, torch.nan)

    def fit(self, problem: FitProblem) -> Fitted:
        """κ of every class, at most 65,536 classes at a time to bound the intermediate results."""
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


def _radius(v: float, kappa: Tensor) -> Tensor:
    return torch.hypot(torch.full_like(kappa, v), kappa)


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


def _series_log_0f1(kappa: Tensor, order: VmfOrder) -> Tensor:
    rest = _power_series(kappa, order.v, 2, order.series_terms)
    return torch.log1p(kappa * kappa / (4 * (order.v + 1)) * rest)


def _series_peak(kappa: Tensor, order: VmfOrder) -> Tensor:
    return kappa - _series_log_0f1(kappa, order)


def _series_log_i(kappa: Tensor, order: VmfOrder) -> Tensor:
    return torch.xlogy(order.v, kappa) - order.log_scale + _series_log_0f1(kappa, order)


def _series_ratios(kappa: Tensor, order: VmfOrder) -> tuple[Tensor, Tensor]:
    """A/κ, and the ratio of the next order."""
    F0, F1, F2 = (_power_series(kappa, order.v + shift, 1, order.series_terms) for shift in range(3))
    return F1 / F0 / (2 * (order.v + 1)), kappa * F2 / F1 / (2 * (order.v + 2))


def _series_ratio(kappa: Tensor, order: VmfOrder) -> Tensor:
    return kappa * _series_ratios(kappa, order)[0]


def _series_ratio_derivative(kappa: Tensor, order: VmfOrder) -> Tensor:
    by_kappa, next_ratio = _series_ratios(kappa, order)
    ratio = kappa * by_kappa
    return by_kappa + ratio * (next_ratio - ratio)


def _debye_logs(kappa: Tensor, r: Tensor, order: VmfOrder) -> tuple[Tensor, Tensor, Tensor]:
    """δ = r − v, the logarithms that g subtracts from it, and the series with its constant."""
    delta = kappa * (kappa / (r + order.v))
    excess = (order.v - order.base) / order.base
    logs = order.v * torch.log1p(delta / (2 * order.base) + excess) + 0.5 * torch.log1p(delta / order.base + excess)
    return delta, logs, _debye(r, order) + order.constant


def _debye_log_0f1(kappa: Tensor, order: VmfOrder) -> Tensor:
    delta, logs, series = _debye_logs(kappa, _radius(order.v, kappa), order)
    return delta - logs + series


def _debye_peak(kappa: Tensor, order: VmfOrder) -> Tensor:
    r = _radius(order.v, kappa)
    _, logs, series = _debye_logs(kappa, r, order)
    return 2 * order.v / (1 + (order.v + r) / kappa) + logs - series


def _debye_log_i(kappa: Tensor, order: VmfOrder) -> Tensor:
    r = _radius(order.v, kappa)
    power = torch.xlogy(order.v, kappa / (order.v + r))
    return r + power - 0.5 * (math.log(2 * math.pi) + torch.log(r)) + _debye(r, order)


def _debye_ratio(kappa: Tensor, order: VmfOrder) -> Tensor:
    r = _radius(order.v, kappa)
    series = _debye(r, order, lambda k, j: k + 2 * j)
    return kappa / (order.v + r) - kappa / r * ((0.5 + series) / r)


def _debye_ratio_derivative(kappa: Tensor, order: VmfOrder) -> Tensor:
    r = _radius(order.v, kappa)
    series = _debye(r, order, lambda k, j: k + 2 * j)
    second = _debye(r, order, lambda k, j: (k + 2 * j) * (k + 2 + 2 * j))
    return order.v / r / (order.v + r) - (0.5 + series) / r / r + (kappa / r / r) ** 2 * (1 + second)


_FUNCTIONS = {
    "log_0f1": (_series_log_0f1, _debye_log_0f1),
    "peak": (_series_peak, _debye_peak),
    "log_i": (_series_log_i, _debye_log_i),
    "ratio": (_series_ratio, _debye_ratio),
    "ratio_derivative": (_series_ratio_derivative, _debye_ratio_derivative),
}
