"""fit_vmf on samples of a known distribution, and on what is hardly one."""

import math

import numpy as np
import pytest
import torch

from python_ref import vmf as reference
from robustdml_ops.ops import bessel_ratio, fit_vmf
from robustdml_ops.ops.vmf.fit import fit_classes
from robustdml_ops.ops.vmf.problem import ESTIMATORS
from tests.nightly import nightly_but
from tests.vmf.against_eager import classes_of


def vmf_samples(trials, n, dim, kappa, seed=0):
    """(trials, n, dim) float64 around the first axis, by rejection (Wood 1994)."""
    generator = np.random.default_rng(seed)
    b = (dim - 1) / (2 * kappa + math.sqrt(4 * kappa**2 + (dim - 1) ** 2))
    x0 = (1 - b) / (1 + b)
    c = kappa * x0 + (dim - 1) * math.log(1 - x0**2)
    cosine = np.empty(0)
    while len(cosine) < trials * n:
        beta = generator.beta((dim - 1) / 2, (dim - 1) / 2, trials * n)
        w = (1 - (1 + b) * beta) / (1 - (1 - b) * beta)
        kept = kappa * w + (dim - 1) * np.log(1 - x0 * w) - c >= np.log(generator.random(trials * n))
        cosine = np.concatenate([cosine, w[kept]])
    cosine = torch.from_numpy(cosine[: trials * n])[:, None]
    rest = torch.nn.functional.normalize(torch.from_numpy(generator.standard_normal((trials * n, dim - 1))))
    return torch.cat([cosine, rest * (1 - cosine**2).sqrt()], 1).reshape(trials, n, dim)


@pytest.mark.parametrize(
    ("n", "uncorrected", "corrected"), [(5, 154.7, 2.3), pytest.param(34, 18.7, 0.3, marks=pytest.mark.nightly)]
)
def test_bias_of_few_samples(n, uncorrected, corrected):
    """D = 128, κ = 537; 20000 trials gave the figures."""
    trials = 4000
    sums, counts = vmf_samples(trials, n, 128, 537.0).sum(1), torch.full((trials,), n)
    plain = fit_vmf(sums, counts, bias_correction="none").kappa
    unbiased = fit_vmf(sums, counts).kappa
    for kappa, bias in ((plain, uncorrected), (unbiased, corrected)):
        assert abs(kappa.mean() - 537 - bias) <= 4 * kappa.std() / math.sqrt(trials)


@pytest.mark.parametrize("n", nightly_but([3], [3, 5, 34]))
def test_the_predictive_kappa_is_that_of_new_samples(n):
    """The mean cosine of a new sample with the estimated direction is the mean length that κ has."""
    trials = 4000
    drawn = vmf_samples(trials, n + 1, 128, 537.0)
    fitted = fit_vmf(drawn[:, :n].sum(1), torch.full((trials,), n), bias_correction="predictive")
    difference = (drawn[:, n] * fitted.mean_direction).sum(1) - bessel_ratio(63, fitted.kappa)
    assert abs(difference.mean()) <= 4 * difference.std() / math.sqrt(trials)
    unbiased = fit_vmf(drawn[:, :n].sum(1), torch.full((trials,), n)).kappa
    assert (fitted.kappa < unbiased).all()


@pytest.mark.parametrize("dim", [2, 3, 8, 64, 128, 2048])
def test_newton_inverts_the_ratio(dim):
    kappa = torch.logspace(-3, 4, 50, dtype=torch.float64)
    length = bessel_ratio(dim / 2 - 1, kappa)
    sums = torch.zeros(50, dim, dtype=torch.float64)
    sums[:, 0] = 1e6 * length
    fitted = fit_vmf(sums, torch.full((50,), 1e6), bias_correction="none").kappa
    torch.testing.assert_close(fitted, kappa, rtol=1e-8, atol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_agree_with_the_reference(estimator):
    x = vmf_samples(1, 50, 128, 537.0)[0]
    fitted = fit_vmf(x.sum(0, keepdim=True), torch.tensor([50]), estimator=estimator, bias_correction="none")
    torch.testing.assert_close(fitted.mean_direction[0], reference.vmf_mean_direction(x))
    paper = reference.vmf_concentration(reference.vmf_mean_resultant_length(x), 128)
    torch.testing.assert_close(fitted.kappa[0], paper, rtol=1e-12 if estimator == "prism" else 2e-3, atol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("correction", ["u", "none", "predictive"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_never_nan(estimator, correction, dtype, backend):
    """No sample, one, all the same, all opposed, a little too long by rounding, a sum of almost nothing."""
    length = torch.tensor([0.0, 0.0, 1.0, 3.0, 0.0, 3.0000004, 1e-30, 2.5], dtype=dtype)
    counts = torch.tensor([0, 1, 1, 3, 4, 3, 7, 3])
    sums = torch.zeros(8, 4, dtype=dtype)
    sums[:, 1] = length
    fitted = fit_vmf(sums, counts, estimator=estimator, bias_correction=correction, backend=backend)
    assert fitted.kappa.dtype == fitted.mean_direction.dtype == dtype
    assert fitted.kappa.isfinite().all()
    assert fitted.mean_direction.isfinite().all()
    assert fitted.kappa[[0, 1, 2, 4]].tolist() == [0, 0, 0, 0]
    largest = 1.1 * 3 / torch.finfo(dtype).eps
    assert (fitted.kappa[[3, 5]] > largest / 4).all() and (fitted.kappa <= largest).all()
    assert 1 < fitted.kappa[7] < 12
    assert fitted.mean_direction[:, 1].tolist() == [0, 0, 1, 1, 0, 1, 0, 1]


def test_a_fit_does_not_depend_on_its_neighbours_or_on_threads(threads):
    sums, counts = (rows.repeat(40, *[1] * (rows.dim() - 1)) for rows in classes_of(300, torch.float32))
    threads(2)
    whole = fit_classes(sums, counts, backend="native")
    some = torch.arange(3, 1600, 7)
    part = fit_classes(sums, counts, classes=some, backend="native")
    threads(1)
    alone = fit_classes(sums, counts, backend="native")
    for ours, of_some, of_one in zip(whole, part, alone, strict=True):
        assert torch.equal(ours[some], of_some)
        assert torch.equal(ours, of_one)


def test_bad_sums_are_named_by_their_class():
    sums, counts = torch.ones(4, 3), torch.full((4,), 5)
    sums[2, 1] = torch.inf
    assert fit_classes(sums, counts, classes=torch.tensor([0, 3])).kappa.shape == (2,)
    with pytest.raises(ValueError, match=r"sums\[2\] has NaN or inf"):
        fit_classes(sums, counts, classes=torch.tensor([3, 2]))


def test_half_precision_sums_are_computed_in_float32():
    sums = torch.tensor([[3.0, 1.0, 0.0]])
    fitted = fit_vmf(sums.bfloat16(), torch.tensor([4.0]))
    assert fitted.kappa.dtype == torch.float32
    torch.testing.assert_close(fitted.kappa, fit_vmf(sums, torch.tensor([4])).kappa)


def test_padded_vectors_have_the_dimension_that_is_told():
    x = vmf_samples(1, 30, 8, 20.0)[0]
    padded = torch.nn.functional.pad(x, (0, 24))
    counts = torch.tensor([30])
    expected = fit_vmf(x.sum(0, keepdim=True), counts).kappa
    torch.testing.assert_close(fit_vmf(padded.sum(0, keepdim=True), counts, dim=8).kappa, expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sums": torch.ones(4)}, "sums must be a floating-point matrix"),
        ({"sums": torch.tensor([[1.0, 0], [torch.nan, 0]])}, r"sums\[1\] has NaN"),
        ({"counts": torch.tensor([2])}, "counts must be 2 numbers"),
        ({"counts": torch.tensor([-2, 3])}, r"counts\[0\] = -2"),
        ({"dim": 5}, "dim must be between 2 and the 4"),
        ({"sums": torch.ones(2, 1)}, "dim must be between 2 and the 1"),
        ({"estimator": "mle"}, "estimator='mle'"),
        ({"bias_correction": "jackknife"}, "bias_correction='jackknife'"),
    ],
)
def test_bad_input(changed, message):
    with pytest.raises(ValueError, match=message):
        fit_vmf(**{"sums": torch.ones(2, 4), "counts": torch.tensor([2, 3]), **changed})
