"""A backend's functions and fit of the von Mises–Fisher distribution against the eager ones."""

import torch

from robustdml_ops.ops.vmf.backends import BACKENDS
from robustdml_ops.ops.vmf.problem import BIAS_CORRECTIONS, ESTIMATORS, FitProblem

FUNCTIONS = ("ratio_derivative", "ratio", "log_0f1", "peak", "log_i")
# One for every pair of lengths that is compiled.
ORDERS = {torch.float64: (0.0, 0.25, 9.5, 63.0, 255.0), torch.float32: (0.0, 0.25, 9.5, 31.0, 63.0)}
# Columns, and the dimension of the sphere: orders by the power series alone, by few and by many of Debye's terms.
SHAPES = [(2, 2), (3, 3), (40, 21), (128, 128), (300, 300)]
FITS = [(estimator, correction) for estimator in ESTIMATORS for correction in BIAS_CORRECTIONS]


def compare_function(name, function, device):
    """In float64, to which A′ of small orders is the difference of two terms nearly 1000 times as large."""
    for dtype, orders in ORDERS.items():
        if (function, dtype) == ("log_i", torch.float32):
            continue  # computed in float64 alone
        kappa = torch.cat([torch.logspace(-4, 4, 301), torch.tensor([0.0, -1.0, torch.nan, torch.inf, 1e30])])
        kappa = kappa.to(dtype).to(device)
        tolerance = (1e-11 if dtype == torch.float64 else 2e-4) if function == "ratio_derivative" else None
        tolerance = tolerance or (2e-14 if dtype == torch.float64 else 4e-7)
        tiny = 1e-12 if function == "log_i" else 1e-37  # its zero; numbers below float32's normal ones
        for v in orders:
            ours = BACKENDS[name].evaluate_vmf(function, v, kappa)
            truth = BACKENDS["eager"].evaluate_vmf(function, v, kappa.double())
            torch.testing.assert_close(ours.double(), truth, rtol=tolerance, atol=tiny, equal_nan=True)
        assert BACKENDS[name].evaluate_vmf(function, 3.0, kappa[:0]).shape == (0,)


def classes_of(D, dtype, device="cpu", nan=False):
    """Sums from hardly longer than nothing to as long as can be, counts from none on."""
    random = torch.Generator().manual_seed(D)
    counts = torch.tensor([0, 1, 2, 3, 5, 40, 1000, 4, 4, 4]).repeat(4)
    length = torch.rand(len(counts), generator=random, dtype=torch.float64) * counts
    length[7], length[8], length[9] = 4, 4.000001, 0
    sums = torch.nn.functional.normalize(torch.randn(len(counts), D, generator=random, dtype=torch.float64))
    sums = (sums * length[:, None]).to(dtype)
    if nan:
        sums[11, 1] = torch.nan
    return sums.to(device), counts.to(device)


def problems(dtype, device, quick):
    """Every estimator and correction in one dimension, the usual ones in the others; few of them where each is slow."""
    some = torch.tensor([5, 5, 36, 0, 11, 3], device=device)
    for D, dim in SHAPES[3:4] if quick else SHAPES:
        sums, counts = classes_of(D, dtype, device, nan=True)
        if quick:
            yield FitProblem(sums, counts.double() + 0.25, some, dim, "newton", "u")
            continue
        for estimator, correction in FITS if D == 40 else FITS[:2]:
            for given, classes in ((counts, None), (counts, some), (counts.double() + 0.25, None)):
                yield FitProblem(sums, given, classes, dim, estimator, correction)
    if quick:
        for estimator, correction in (("banerjee", "predictive"), ("prism", "none")):
            yield FitProblem(sums, counts, some, dim, estimator, correction)


def compare_fit(name, device="cpu", quick=False):
    """How many fits were compared."""
    backend, eager, compared = BACKENDS[name], BACKENDS["eager"], 0
    for dtype in (torch.float32, torch.float64):
        exact = {"rtol": 1e-11, "atol": 1e-300} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 1e-30}
        for problem in problems(dtype, device, quick):
            ours, expected = backend.fit(problem), eager.fit(problem)
            assert ours.kappa.dtype == ours.log_peak.dtype == dtype
            torch.testing.assert_close(ours.norm, expected.norm, rtol=1e-14, atol=0, equal_nan=True)
            # Where a mean length is within rounding of 1, κ is noise below its bound.
            counts = problem.counts if problem.classes is None else problem.counts[problem.classes]
            told = ~(ours.norm / counts.double() > 1 - 1e-6)
            assert (ours.kappa[~told] <= 1.1 * (problem.dim - 1) / torch.finfo(dtype).eps).all()
            for found, truth in zip(ours[:2], expected[:2], strict=True):
                torch.testing.assert_close(found[told], truth[told], **exact, equal_nan=True)
            compared += 1
    empty = backend.fit(FitProblem(problem.sums[:0], problem.counts[:0], None, problem.dim, "newton", "u"))
    assert [values.shape for values in empty] == [(0,)] * 3
    return compared
