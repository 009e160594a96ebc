"""The von Mises–Fisher functions against mpmath, and what they do at the edges."""

import mpmath as mp
import pytest
import torch

from python_ref import vmf as reference
from robustdml_ops.ops.vmf import bessel_ratio, log_bessel_i, vmf, vmf_log_likelihood, vmf_log_normalizer, vmf_log_peak
from robustdml_ops.ops.vmf.problem import vmf_order
from tests.nightly import nightly_but
from tests.vmf.vmf_oracle import exact

DIMENSIONS = [2, 3, 4, 5, 8, 16, 24, 29, 31, 32, 34, 48, 64, 66, 95, 96, 128, 256, 258, 512, 768, 1024, 2048, 4096]
CPU_BACKENDS = ("native", "eager")
DTYPES = [torch.float64, torch.float32]
BAR = {torch.float64: 1e-13, torch.float32: 4e-7}
# A' is what two terms of size 1/κ leave, 1/2κ² at D = 2: the branch is at κ = 32, or 14, there.
DERIVATIVE_BAR = {torch.float64: 1e-11, torch.float32: 2e-4}


def points(v, dtype):
    """κ from 1e-6 to 1e6, dense around the change from one series to the other and the zero of log I_v."""
    branch = vmf_order(v, dtype).series_below
    near = branch * torch.linspace(0.97, 1.03, 13, dtype=torch.float64)
    wide = torch.logspace(-6, 6, 37, dtype=torch.float64)
    zero = 0.66 * v * torch.linspace(0.9, 1.1, 5, dtype=torch.float64) + 0.1
    return torch.cat([wide, near, torch.tensor([branch]), zero]).to(dtype)


def worst(values, truths):
    """Largest relative error."""
    pairs = zip(values, truths, strict=True)
    return float(max(abs(mp.mpf(float(value)) - truth) / abs(truth) for value, truth in pairs))


@pytest.mark.parametrize("dim", nightly_but([2, 3, 31, 96, 258], DIMENSIONS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_mpmath(dim, dtype):
    v = dim / 2 - 1
    kappa = points(v, dtype)
    truth = [exact(v, float(k)) for k in kappa]
    for backend in CPU_BACKENDS:
        for function in ("log_0f1", "peak", "ratio", "ratio_derivative"):
            error = worst(vmf(function, v, kappa, backend), [getattr(point, function) for point in truth])
            bar = DERIVATIVE_BAR if function == "ratio_derivative" else BAR
            assert error <= bar[dtype], (backend, function)


@pytest.mark.parametrize("v", nightly_but([0.0, 0.3, 63.0], [0.0, 0.3, 1.0, 9.5, 31.0, 63.0, 511.0, 2047.0]))
def test_log_bessel_i(v):
    kappa = points(v, torch.float64)
    truth = [exact(v, float(k)).log_i for k in kappa]
    for backend in CPU_BACKENDS:
        values = log_bessel_i(v, kappa, backend=backend)
        for k, value, right in zip(kappa, values, truth, strict=True):
            # Of the largest of the numbers whose difference it is.
            assert abs(mp.mpf(float(value)) - right) <= 1e-15 * max(1, v, float(k), abs(right))
    # float32 in and out, double between: the zero crossing costs nothing.
    single = kappa.float()
    rounded = [exact(v, float(k)).log_i for k in single]
    assert worst(log_bessel_i(v, single), rounded) <= 1e-7


@pytest.mark.parametrize("dim", [2, 3, 128])
def test_log_normalizer_is_that_of_the_paper(dim):
    kappa = torch.tensor([0.0, 1e-3, 0.5, 7.0, 40.0, 537.0], dtype=torch.float64)
    torch.testing.assert_close(
        vmf_log_normalizer(dim, kappa), reference.vmf_log_normalizer(dim, kappa), rtol=1e-13, atol=0
    )
    torch.testing.assert_close(
        vmf_log_peak(dim, kappa), vmf_log_normalizer(dim, kappa) - vmf_log_normalizer(dim, kappa[:1]) + kappa
    )
    assert vmf_log_normalizer(dim, kappa.float()).dtype == torch.float32


@pytest.mark.parametrize("order", [0.0, 3.5, 63.0])
def test_derivatives(order, backend):
    kappa = torch.tensor([0.2, 3.0, 20.0, 31.0, 33.0, 90.0], dtype=torch.float64, requires_grad=True)
    dim = int(2 * order + 2)
    for function in (
        lambda k: log_bessel_i(order, k, backend=backend),
        lambda k: bessel_ratio(order, k, backend=backend),
        lambda k: vmf_log_normalizer(dim, k, backend=backend),
        lambda k: vmf_log_peak(dim, k, backend=backend),
    ):
        assert torch.autograd.gradcheck(function, kappa)
    assert torch.autograd.gradgradcheck(lambda k: vmf_log_normalizer(dim, k, backend=backend), kappa)
    assert torch.autograd.gradgradcheck(lambda k: log_bessel_i(order, k, backend=backend), kappa)
    (slope,) = torch.autograd.grad(bessel_ratio(order, kappa).sum(), kappa, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        slope.sum().backward()


def test_derivatives_at_the_ends():
    kappa = torch.tensor([0.0, torch.inf], dtype=torch.float64, requires_grad=True)
    (ratio,) = torch.autograd.grad(bessel_ratio(63, kappa).sum(), kappa)
    assert ratio.tolist() == [1 / 128, 0]
    (peak,) = torch.autograd.grad(vmf_log_peak(128, kappa).sum(), kappa)
    assert peak.tolist() == [1, 0]
    (log_i,) = torch.autograd.grad(log_bessel_i(0, kappa).sum(), kappa)
    assert log_i.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ends_of_the_range(dtype, backend):
    kappa = torch.tensor([0.0, 1e19, torch.inf], dtype=dtype)
    for dim in (2, 3, 128, 4096):
        v = dim / 2 - 1
        assert log_bessel_i(v, kappa, backend=backend).tolist() == [
            0 if v == 0 else -torch.inf,
            pytest.approx(1e19),
            torch.inf,
        ]
        assert bessel_ratio(v, kappa, backend=backend).tolist() == [0, pytest.approx(1, rel=1e-15), 1]
        assert vmf_log_normalizer(dim, kappa, backend=backend)[1:].tolist() == [pytest.approx(-1e19), -torch.inf]
        zero, large, infinite = vmf_log_peak(dim, kappa, backend=backend).tolist()
        assert (zero, infinite) == (0, torch.inf)
        assert large == pytest.approx(float(exact(v, 1e19).peak), rel=1e-6)


def test_bad_kappa_is_nan_where_nobody_may_look(backend):
    """The engine is what a GPU runs: there is no check before it."""
    for function in ("log_0f1", "peak", "log_i", "ratio", "ratio_derivative"):
        values = vmf(function, 63.0, torch.tensor([-1.0, torch.nan, 5.0], dtype=torch.float64), backend)
        assert values.isnan().tolist() == [True, True, False]


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_bad_kappa_is_an_error_on_the_cpu(bad):
    kappa = torch.tensor([[1.0, 2.0], [bad, 3.0]])
    for function in (lambda k: bessel_ratio(3, k), lambda k: vmf_log_peak(8, k), lambda k: log_bessel_i(3, k)):
        with pytest.raises(ValueError, match=r"kappa\[1, 0\] = (-1.0|nan)"):
            function(kappa)
    with pytest.raises(ValueError, match=r"kappa = "):
        bessel_ratio(3, torch.tensor(bad))


def test_bad_arguments():
    one = torch.ones(1)
    for dim in (1, 0, 2.5):
        with pytest.raises(ValueError, match="dim must be an integer from 2"):
            vmf_log_peak(dim, one)
    for v in (-0.5, float("nan"), 1e10):
        with pytest.raises(ValueError, match="v must be between 0"):
            log_bessel_i(v, one)
    with pytest.raises(TypeError, match=r"pass torch.tensor\(3.0\)"):
        bessel_ratio(1, 3.0)


def test_types_and_shapes(backend):
    whole = torch.tensor([[1, 2, 3], [4, 50, 600]])
    expected = bessel_ratio(63, whole.double(), backend=backend)
    for dtype in (torch.int64, torch.float16, torch.bfloat16, torch.float32):
        values = bessel_ratio(63, whole.to(dtype), backend=backend)
        assert values.dtype == torch.float32
        exactly = bessel_ratio(63, whole.to(dtype).double(), backend=backend)
        torch.testing.assert_close(values.double(), exactly, rtol=4e-7, atol=0)
    torch.testing.assert_close(bessel_ratio(63, whole.double().t(), backend=backend), expected.t(), rtol=1e-15, atol=0)
    for shape in ((), (0,), (2, 0, 3), (1, 1, 1)):
        assert bessel_ratio(63, torch.full(shape, 7.0), backend=backend).shape == shape
    half = torch.tensor([5.0], dtype=torch.float16, requires_grad=True)
    vmf_log_peak(128, half, backend=backend).sum().backward()
    assert half.grad.dtype == torch.float16


def unit_rows(generator, *shape):
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("dim", [512, 2048])
def test_likelihood_in_float32_keeps_what_the_textbook_form_loses(dim):
    generator = torch.Generator().manual_seed(0)
    mu, kappa = unit_rows(generator, 64, dim), 300 + 600 * torch.rand(64, generator=generator, dtype=torch.float64)
    x = torch.nn.functional.normalize(mu + 0.3 * unit_rows(generator, 64, dim), dim=-1)
    rounded = [tensor.float() for tensor in (x, mu, kappa)]
    uniform = vmf_log_normalizer(dim, torch.zeros((), dtype=torch.float64))
    truth = reference.vmf_log_density(*(tensor.double() for tensor in rounded)) - uniform
    ours = vmf_log_likelihood(*rounded)
    assert ours.dtype == torch.float32
    error = (ours - truth).abs().max()
    assert error <= 5e-4
    textbook = vmf_log_normalizer(dim, rounded[2]) + rounded[2] * (rounded[0] @ rounded[1].t()) - uniform.float()
    assert error < (textbook - truth).abs().max()
    torch.testing.assert_close(vmf_log_likelihood(x, mu, kappa), reference.vmf_log_density(x, mu, kappa) - uniform)
