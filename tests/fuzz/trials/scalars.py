"""Functions of single numbers, Otsu's cut, and the fit of von Mises–Fisher distributions.

Their precision is documented relative to the value itself: ``docs/numerics.md``, and the docstrings of the ops.
"""

import math

import mpmath
import torch
from hypothesis import strategies as st
from torch import Tensor

from python_ref import procsim, vmf
from robustdml_ops import ops
from tests.fuzz.draws import backends, flags, floats, generator_of, normal, seeds, uniform
from tests.fuzz.oracle import EPSILON, Check, close
from tests.fuzz.trials.batches import Draw, chance, digits
from tests.otsu import otsu_oracle
from tests.vmf.vmf_oracle import exact

OF_KAPPA = {torch.float64: 1e-13, torch.float32: 4e-7}  # docs/numerics.md
OF_SLOPE = {torch.float64: 1e-11, torch.float32: 2e-4}  # of the ratio's derivative, at its worst
shapes = st.sampled_from([(), (0,), (1,), (5,), (17,), (2, 3), (3, 1, 2)])


def numbers(draw: Draw, dtype: torch.dtype, low: int, high: int) -> Tensor:
    """Positive numbers of many sizes, by powers of ten; of any shape, and perhaps not contiguous."""
    shape, generator = draw(shapes), generator_of(draw(seeds))
    values = 10.0 ** (low + (high - low) * uniform(generator, *shape)) * (0.1 + uniform(generator, *shape))
    values = values.clamp(max=torch.finfo(dtype).max / 8).to(dtype)
    if values.dim() and draw(flags):
        values = values.repeat_interleave(2, -1)[..., ::2]
    return values


def computed(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _differentiated(function, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    value = function(leaf)
    (slope,) = torch.autograd.grad(value.sum(), leaf) if value.numel() else (torch.zeros_like(leaf),)
    assert slope.dtype == x.dtype
    return value.detach(), slope


def lambertw(draw: Draw) -> Check:
    dtype, backend = draw(floats), draw(backends)
    x = numbers(draw, dtype, -30, 30)
    if chance(draw):  # near the branch point, where W has no derivative
        x = (-1 / math.e + 10.0 ** -(1 + 6 * uniform(generator_of(draw(seeds)), *x.shape))).to(dtype)
    x = torch.maximum(x, torch.tensor(-1 / math.e, dtype=computed(dtype)).to(dtype) * (1 - torch.finfo(dtype).eps))

    def judge() -> None:
        value, slope = _differentiated(lambda t: ops.lambertw(t, backend=backend), x)
        assert value.dtype == computed(dtype)
        with mpmath.workdps(30):
            W = [mpmath.lambertw(mpmath.mpf(t)).real for t in x.double().flatten().tolist()]
            slopes = [1 / (mpmath.exp(w) * (1 + w)) for w in W]
        W, slopes = (torch.tensor([float(n) for n in of], dtype=torch.float64).view(x.shape) for of in (W, slopes))
        epsilon = EPSILON[value.dtype]
        close("W", value, W, 8 * epsilon * W.abs() + torch.finfo(value.dtype).tiny)
        # An error of W is divided by 1 + W.
        allowed = slopes * (16 * epsilon * (1 + 1 / (1 + W).clamp(min=epsilon)) + torch.finfo(dtype).eps)
        close("its derivative", slope, slopes, allowed + torch.finfo(dtype).tiny)

    return Check(judge)


def _losses(draw: Draw, dtype: torch.dtype) -> Tensor:
    generator = generator_of(draw(seeds))
    shape = draw(shapes)
    values = normal(generator, *shape) * draw(st.sampled_from([1e-3, 1.0, 30.0]))
    if chance(draw):
        values = values.round()
    return values.to(dtype)


def confidence(draw: Draw) -> Check:
    dtype, backend = draw(floats), draw(backends)
    losses, lam, tau = (
        _losses(draw, dtype),
        draw(st.sampled_from([1e-2, 1.0, 50.0])),
        draw(st.sampled_from([-1.0, 0.0, 0.5])),
    )
    given = torch.tensor(tau) if draw(flags) else tau

    def judge() -> None:
        sigma = ops.confidence(losses, given, lam, backend=backend)
        assert sigma.dtype == computed(dtype) and not sigma.requires_grad
        x = ((losses.double() - tau) / (2 * lam)).clamp(min=0)
        truth = procsim.confidence(losses.double(), tau, lam)
        # dσ/dx = −σ²/(1 + W): x itself is off by the rounding of ℓ − τ, of the quotient, and of λ.
        moved = EPSILON[sigma.dtype] * (4 * x + (losses.double().abs() + abs(tau)) / lam)
        close("σ", sigma, truth, truth * (moved + 16 * EPSILON[sigma.dtype] * (1 + x)))

    return Check(judge)


def superloss_of(losses: Tensor, tau: float, lam: float) -> tuple[Tensor, Tensor]:
    """As ``python_ref.superloss``, which bisects, and has half of the digits at the branch point: W is −1 there."""
    value, sigma = procsim.superloss(losses, tau, lam)
    clamped = (losses - tau) / lam <= -2 / math.e
    return torch.where(clamped, (losses - tau) * math.e + lam, value), torch.where(clamped, math.e, sigma)


def superloss(draw: Draw) -> Check:
    dtype, backend = draw(floats), draw(backends)
    losses, lam, tau = (
        _losses(draw, dtype),
        draw(st.sampled_from([1e-2, 1.0, 50.0])),
        draw(st.sampled_from([-1.0, 0.0, 0.5])),
    )

    def judge() -> None:
        value, slope = _differentiated(lambda t: ops.superloss(t, tau, lam, backend=backend), losses)
        epsilon = EPSILON[value.dtype]
        exact_value, sigma = superloss_of(losses.double(), tau, lam)
        gap = losses.double() - tau
        off = epsilon * (losses.double().abs() + abs(tau) + lam)  # of ℓ − τ
        close(
            "the value", value, exact_value, 4 * (sigma * off + 8 * epsilon * (gap.abs() * sigma + exact_value.abs()))
        )
        # Near −2λ/e the branch point: W is a square root there, in the reference as well.
        x = (gap / lam).clamp(min=-2 / math.e) / 2
        near = (2 * (1 + math.e * x)).clamp(min=0).sqrt()  # about 1 + W
        root = (8 * (off / lam + epsilon)).sqrt().minimum(8 * (off / lam + epsilon) / near.clamp(min=1e-30))
        far = 16 * (epsilon * (1 + x.abs()) + off / lam / (1 + x.abs()))
        close("σ", slope, sigma, sigma * (root * (near < 1) + far + torch.finfo(dtype).eps))

    return Check(judge)


orders = st.sampled_from([0.0, 0.3, 0.5, 1.0, 3.0, 7.0, 15.5, 63.0, 255.0])


def _kappa(draw: Draw) -> Tensor:
    dtype, generator = draw(st.sampled_from([torch.float32, torch.float64])), generator_of(draw(seeds))
    values = 10.0 ** (8 * uniform(generator, draw(st.sampled_from([0, 1, 3]))) - 4)
    values[1:2] = 0
    return values.to(dtype)


def _of_kappa(kappa: Tensor, v: float, *names: str) -> list[Tensor]:
    """Exact values of these functions, in float64; what they are at κ = 0 is told in their docstrings."""
    at_zero = {"log_0f1": 0.0, "peak": 0.0, "log_i": 0.0 if v == 0 else -math.inf, "ratio": 0.0}
    at_zero["ratio_derivative"] = 1 / (2 * v + 2)
    return [
        torch.tensor(
            [float(getattr(exact(v, k), name)) if k else at_zero[name] for k in kappa.tolist()], dtype=torch.float64
        )
        for name in names
    ]


def bessel_ratio(draw: Draw) -> Check:
    kappa, v, backend = _kappa(draw), draw(orders), draw(backends)

    def judge() -> None:
        value, slope = _differentiated(lambda t: ops.bessel_ratio(v, t, backend=backend), kappa)
        ratio, derivative = _of_kappa(kappa, v, "ratio", "ratio_derivative")
        close("A", value, ratio, OF_KAPPA[kappa.dtype] * ratio + torch.finfo(kappa.dtype).tiny)
        close("A′", slope, derivative, OF_SLOPE[kappa.dtype] * derivative + torch.finfo(kappa.dtype).tiny)

    return Check(judge)


def log_bessel_i(draw: Draw) -> Check:
    kappa, v, backend = _kappa(draw), draw(orders), draw(backends)
    kappa = kappa[kappa > 0] if v else kappa

    def judge() -> None:
        value, slope = _differentiated(lambda t: ops.log_bessel_i(v, t, backend=backend), kappa)
        log_i, ratio = _of_kappa(kappa, v, "log_i", "ratio")
        k = kappa.double()
        allowed = (
            2e-15 * torch.stack([k, log_i.abs(), torch.full_like(k, v)]).amax(0)
            + 2 * EPSILON[kappa.dtype] * log_i.abs()
        )
        close("log I", value, log_i, allowed)
        truth = ratio + torch.where(k == 0, 0, v / k) if v else ratio
        close("its derivative", slope, truth, OF_KAPPA[kappa.dtype] * truth + torch.finfo(kappa.dtype).tiny)

    return Check(judge)


def vmf_log_normalizer(draw: Draw) -> Check:
    kappa, dim, backend = _kappa(draw), draw(st.sampled_from([2, 3, 5, 16, 128, 512])), draw(backends)

    def judge() -> None:
        value, slope = _differentiated(lambda t: ops.vmf_log_normalizer(dim, t, backend=backend), kappa)
        g, ratio = _of_kappa(kappa, dim / 2 - 1, "log_0f1", "ratio")
        at_zero = math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)
        allowed = 1e-13 * (g + abs(at_zero) + dim) + 2 * EPSILON[kappa.dtype] * (g + abs(at_zero))
        close("log C", value, at_zero - g, allowed)
        close("its derivative", slope, -ratio, OF_KAPPA[kappa.dtype] * ratio + torch.finfo(kappa.dtype).tiny)
        small = kappa.double()[kappa < 1000]  # the series of the reference, as far as it goes
        close("the reference", at_zero - g[kappa < 1000], vmf.vmf_log_normalizer(dim, small), 1e-11 * (1 + small + dim))

    return Check(judge)


def vmf_log_peak(draw: Draw) -> Check:
    kappa, dim, backend = _kappa(draw), draw(st.sampled_from([2, 3, 5, 16, 128, 512])), draw(backends)

    def judge() -> None:
        value, slope = _differentiated(lambda t: ops.vmf_log_peak(dim, t, backend=backend), kappa)
        peak, ratio = _of_kappa(kappa, dim / 2 - 1, "peak", "ratio")
        close("h", value, peak, OF_KAPPA[kappa.dtype] * peak + torch.finfo(kappa.dtype).tiny)
        close("its derivative", slope, 1 - ratio, OF_KAPPA[kappa.dtype] * ratio + 4 * EPSILON[kappa.dtype])

    return Check(judge)


def vmf_log_likelihood(draw: Draw) -> Check:
    B, C, D = draw(st.integers(0, 6)), draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 8, 32]))
    dtype, backend, generator = draw(floats), draw(backends), generator_of(draw(seeds))
    x, mu = (torch.nn.functional.normalize(normal(generator, n, D)).to(dtype) for n in (B, C))
    kappa = (10.0 ** (5 * uniform(generator, C) - 2)).to(dtype)

    def judge() -> None:
        value = ops.vmf_log_likelihood(x, mu, kappa, backend=backend)
        k, cosine = kappa.double(), x.double() @ mu.double().t()
        (peak,) = _of_kappa(k, D / 2 - 1, "peak")
        allowed = 2 * OF_KAPPA[value.dtype] * peak + k * (digits(D) + 4) * EPSILON[value.dtype]
        close("the log-density", value, peak - k * (1 - cosine), allowed.expand(B, C))
        small = kappa.double().clamp(max=500)
        reference = vmf.vmf_log_density(x.double(), mu.double(), small) - vmf.vmf_log_normalizer(D, 0 * small)
        ours = ops.vmf_log_likelihood(x.double(), mu.double(), small, backend=backend)
        close("the reference", ours, reference, (1e-11 * (1 + small + D)).expand(B, C))

    return Check(judge)


def fit_vmf(draw: Draw) -> Check:
    C, D = draw(st.integers(1, 5)), draw(st.sampled_from([2, 3, 8, 64]))
    dtype, backend, generator = draw(floats), draw(backends), generator_of(draw(seeds))
    estimator = draw(st.sampled_from(["newton", "banerjee", "prism"]))
    correction = draw(st.sampled_from(["u", "none", "predictive"]))
    counts = torch.randint(0, 40, (C,), generator=generator)
    spread = draw(st.sampled_from([0.0, 1e-6, 0.1, 1.0, 10.0]))
    sums = torch.zeros(C, D, dtype=torch.float64)
    for k, n in enumerate(counts.tolist()):
        rows = torch.nn.functional.normalize(normal(generator, 1, D)) + spread * normal(generator, n, D)
        sums[k] = torch.nn.functional.normalize(rows).sum(0)
    sums = sums.to(dtype)

    def judge() -> None:
        mean, kappa = ops.fit_vmf(sums, counts, estimator=estimator, bias_correction=correction, backend=backend)
        epsilon, n = EPSILON[kappa.dtype], counts.double()
        assert kappa.dtype == mean.dtype == computed(dtype)
        assert torch.isfinite(kappa).all() and (kappa >= 0).all() and (kappa <= 1.1 * (D - 1) / epsilon).all()
        exact_sums = sums.double()
        norm = torch.linalg.vector_norm(exact_sums, dim=1)
        directions = torch.where(norm[:, None] < 1e-12, 0, exact_sums / norm[:, None])
        close("directions", mean, directions, torch.tensor(digits(D) * epsilon).double())
        R = (norm / n).clamp(max=1)
        unbiased = ((n * R**2 - 1) / (n - 1)).clamp(min=0)
        R = {"u": unbiased.sqrt(), "none": R, "predictive": unbiased / R}[correction]
        R = torch.where((counts > 1) & (norm >= 1e-12), R, 0).clamp(max=1 - epsilon)
        off = 8e-16 * (1 + 1 / R.clamp(min=1e-8)) + 1e-15  # of R: all in double
        if estimator == "newton":
            found = ops.bessel_ratio(D / 2 - 1, kappa.double(), backend="eager")
            slope = (1 - R**2).clamp(min=epsilon)  # κ A′ is of this size
            close("A(κ)", found, R, 4e-9 * slope + (4 * epsilon + 1e-9) * slope + 4 * off)
            return
        D_less = R if estimator == "prism" else R**2
        truth = R * (D - D_less) / (1 - R**2)
        sensitivity = 4 * off / (1 - R**2) + 8 * epsilon
        close("κ", kappa, truth, truth * sensitivity + D * off)

    return Check(judge)


def _batches_of_losses(draw: Draw) -> Tensor:
    """(rows, n) with ties, far values, NaN and ±∞ among them."""
    rows, n, generator = (
        draw(st.integers(0, 3)),
        draw(st.sampled_from([0, 1, 2, 3, 4, 5, 8, 17, 40])),
        generator_of(draw(seeds)),
    )
    values = normal(generator, rows, n) * draw(st.sampled_from([1e-20, 1.0, 1e4]))
    kind = draw(st.sampled_from(["plain", "ties", "equal", "far", "not finite"]))
    if kind == "ties":
        values = values.round()
    elif kind == "equal":
        values = values[:, :1].expand(rows, n).clone() if n else values
    elif kind == "far":
        values = values + 1e6
    elif kind == "not finite":
        values[uniform(generator, rows, n) < 0.2] = math.nan
        values[uniform(generator, rows, n) < 0.1] = math.inf
    dtype = draw(floats)
    return values.clamp(-60000, 60000).to(dtype) if dtype == torch.float16 else values.to(dtype)


def otsu_threshold(draw: Draw) -> Check:
    losses, min_group, backend = _batches_of_losses(draw), draw(st.integers(1, 4)), draw(backends)
    dim = draw(st.sampled_from([-1, 1, 0]))

    def judge() -> None:
        cut = ops.otsu_threshold(losses.t() if dim == 0 else losses, min_group, dim, backend=backend)
        values = losses.to(computed(losses.dtype))
        epsilon = 8 * EPSILON[values.dtype]  # values are centred, summed, divided and moved back
        for row, found in enumerate(zip(*(part.tolist() for part in cut), strict=True)):
            threshold, index, low, high, is_found, excluded = found
            otsu_oracle.check(
                values[row].tolist(), min_group, threshold, index, low, high, is_found, excluded, epsilon, exact=False
            )

    return Check(judge)


def otsu_confidence(draw: Draw) -> Check:
    all_losses, min_group, backend = _batches_of_losses(draw), draw(st.integers(1, 4)), draw(backends)
    losses, lam = all_losses.flatten(), draw(st.sampled_from([1e-2, 1.0, 50.0]))

    def judge() -> None:
        threshold, sigma = ops.otsu_confidence(losses, lam, min_group, backend=backend)
        cut = ops.otsu_threshold(losses, min_group, backend="eager")
        assert bool(cut.found) == bool(torch.isfinite(threshold))
        values = losses.to(threshold.dtype)
        finite = values[torch.isfinite(values)]
        assert ((finite <= threshold).sum() >= min_group) | (not cut.found)
        truth = (
            procsim.confidence(values.double(), float(threshold), lam)
            if cut.found
            else torch.ones(len(values)).double()
        )
        truth = torch.where(values == math.inf, 0.0, truth) if cut.found else truth
        known = torch.isfinite(values) & (values.abs() < 1e30)
        x = ((values.double() - float(threshold)) / (2 * lam)).clamp(min=0)[known]
        scale = values[known].double().abs() + (abs(float(threshold)) if cut.found else 0.0)
        moved = EPSILON[values.dtype] * (4 * x + scale / lam + 16 * (1 + x))
        close("σ", sigma[known], truth[known], truth[known] * moved)
        assert torch.equal(torch.isnan(sigma), torch.isnan(values))

    return Check(judge)


TRIALS = {
    "lambertw": lambertw,
    "confidence": confidence,
    "superloss": superloss,
    "bessel_ratio": bessel_ratio,
    "log_bessel_i": log_bessel_i,
    "vmf_log_normalizer": vmf_log_normalizer,
    "vmf_log_peak": vmf_log_peak,
    "vmf_log_likelihood": vmf_log_likelihood,
    "fit_vmf": fit_vmf,
    "otsu_threshold": otsu_threshold,
    "otsu_confidence": otsu_confidence,
}
