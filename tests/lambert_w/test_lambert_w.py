"""Lambert's W, ProcSim's confidence and SuperLoss on tensors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_ref import procsim
from robustdml_ops.ops import confidence, lambertw, otsu_threshold, superloss

CPU_BACKENDS = ("native", "eager")
DTYPES = [torch.float64, torch.float32]
LARGEST_W = {torch.float64: 703.2270331, torch.float32: 84.288595}  # of the largest number
few = settings(max_examples=40, deadline=None)
backends = st.sampled_from(CPU_BACKENDS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ends_of_the_range(dtype, backend):
    limits = torch.finfo(dtype)
    x = torch.tensor([-1 / math.e, -0.0, limits.smallest_normal / 4, 1e30, limits.max, math.inf, math.nan], dtype=dtype)
    w = lambertw(x, backend=backend)
    expected = [-1, 0, limits.smallest_normal / 4, 64.90463377, LARGEST_W[dtype], math.inf]
    assert w[:-1].tolist() == pytest.approx(expected, rel=3e-8 if dtype == torch.float64 else 4e-7)
    assert w[-1].isnan()
    with pytest.raises(ValueError, match=r"x\[1, 0\] = -0.5 is below -1/e"):
        lambertw(torch.tensor([[0.0], [-0.5]], dtype=dtype), backend=backend)


def test_derivatives_of_w(backend):
    x = torch.tensor([-0.36, -0.2, -0.05, 0.0, 0.03, 0.5, 20.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: lambertw(x, backend=backend), x)
    inside = x.detach()[1:].requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: lambertw(x, backend=backend), inside)
    ends = torch.tensor([-1 / math.e, 0.0, 1e30, math.inf], requires_grad=True)
    (slope,) = torch.autograd.grad(lambertw(ends, backend=backend).sum(), ends)
    assert slope.tolist() == [math.inf, 1, pytest.approx(64.904634 / 65.904634e30, rel=1e-6), 0]


losses_and_lambda = st.tuples(
    st.lists(st.floats(-50, 50), max_size=20).map(lambda v: torch.tensor(v, dtype=torch.float64)),
    st.floats(1e-3, 100),
)


@few
@given(losses_and_lambda, backends)
def test_confidence_is_the_reference_s(case, backend):
    losses, lam = case
    threshold = otsu_threshold(losses, backend=backend).threshold
    ours = confidence(losses, threshold, lam, backend=backend)
    torch.testing.assert_close(ours, procsim.confidence(losses, threshold.item(), lam), rtol=1e-12, atol=1e-300)


@few
@given(losses_and_lambda, st.floats(-20, 20), backends)
def test_superloss_is_the_reference_s_with_sigma_for_its_gradient(case, tau, backend):
    losses, lam = case
    losses.requires_grad_()
    value = superloss(losses, tau, lam, backend=backend)
    expected, sigma = procsim.superloss(losses.detach(), tau, lam)
    # The reference's W is exact to 1e-8 at the branch point.
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-7 * (1 + lam))
    upstream = torch.linspace(-1, 2, len(losses), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(value, losses, upstream)
    torch.testing.assert_close(gradient, upstream * sigma, rtol=1e-7, atol=0)


def test_gradient_of_superloss(backend):
    losses = torch.linspace(-3, 4, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: superloss(x, 0.3, 0.8, backend=backend), losses)
    beyond_branch = torch.linspace(0, 4, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: superloss(x, 0.3, 0.8, backend=backend), beyond_branch)
    # Below the clamp the confidence is the constant e.
    low = torch.full((2,), -9.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(superloss(low, 0.3, 0.7, backend=backend).sum(), low, create_graph=True)
    torch.testing.assert_close(slope.detach(), torch.full_like(low, torch.e))
    assert (torch.autograd.grad(slope.sum(), low)[0] == 0).all()
    value = superloss(losses, 0.3, 0.8, backend=backend).sum()
    # With create_graph σ is computed again, differentiably.
    plain, again = (
        torch.autograd.grad(value, losses, create_graph=graph, retain_graph=True)[0] for graph in (False, True)
    )
    torch.testing.assert_close(again, plain, rtol=1e-7, atol=0)


def test_a_threshold_per_batch(backend):
    losses = torch.rand(4, 30, 3, generator=torch.Generator().manual_seed(0))
    threshold = otsu_threshold(losses, dim=1).threshold.unsqueeze(1)
    whole = confidence(losses, threshold, 0.1, backend=backend)
    alone = confidence(losses[2, :, 1], threshold[2, 0, 1], 0.1, backend=backend)
    torch.testing.assert_close(whole[2, :, 1], alone, rtol=1e-6, atol=0)
    assert confidence(losses[:0], 1.0, 0.1, backend=backend).shape == (0, 30, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    losses = torch.tensor([0.0, 1.0, 3.0], dtype=dtype, requires_grad=True)
    for function in (lambda x: lambertw(x), lambda x: confidence(x, 1.0, 0.5), lambda x: superloss(x, 1.0, 0.5)):
        assert torch.equal(function(losses), function(losses.detach().float()))
    superloss(losses, 1.0, 0.5).sum().backward()
    assert losses.grad.dtype == dtype


@pytest.mark.parametrize("lam", [0.0, -1.0, math.nan, math.inf, 1e-60, True, torch.tensor(1.0)])
@pytest.mark.parametrize("function", [confidence, superloss])
def test_lambda_must_be_positive(function, lam):
    with pytest.raises(ValueError, match=r"lam must be a positive number in the range of torch.float32"):
        function(torch.rand(3), 0.5, lam)


def test_bad_arguments_name_themselves():
    with pytest.raises(ValueError, match=r"threshold must broadcast to the shape of losses, \(3,\), got \(2,\)"):
        confidence(torch.rand(3), torch.rand(2), 1.0)
    with pytest.raises(ValueError, match=r"pass tau.detach"):
        superloss(torch.rand(3), torch.tensor(1.0, requires_grad=True), 1.0)


def test_registered_ops(backend):
    constants, tau = torch.rand(8, dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    registered = torch.ops.robustdml_ops
    torch.library.opcheck(registered.lambertw.default, (constants, backend))
    torch.library.opcheck(registered.confidence.default, (constants, tau, 0.3, backend))
    torch.library.opcheck(registered.superloss.default, (constants, tau, 0.3, backend))


def test_a_threshold_of_one_element_gives_the_shape_of_the_losses(backend):
    """Also of one number: the threshold's own dimensions are not those of the result."""
    for shape in ((), (3,), (2, 1)):
        losses = torch.full(shape, 2.0, requires_grad=True)
        for tau in (0.5, torch.tensor(0.5), torch.tensor([[[0.5]]])):
            assert confidence(losses, tau, 1.0, backend=backend).shape == shape
            value = superloss(losses, tau, 1.0, backend=backend)
            assert value.shape == shape
            assert torch.autograd.grad(value.sum(), losses)[0].shape == shape
