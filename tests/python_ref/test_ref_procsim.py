import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ref_cases import assert_same, cases, few, leaves

from python_ref import procsim
from tests.otsu.otsu_oracle import exact_cut

small_losses = st.lists(st.integers(-6, 6), max_size=12).map(lambda values: torch.tensor(values, dtype=torch.float64))


@few
@given(cases, st.floats(0.1, 20), st.booleans())
def test_proxy_nca_is_a_negative_logarithm_of_a_share(case, scale, include_positive):
    losses = procsim.proxy_nca_losses(case.X, case.P, case.y, scale, include_positive)
    for i, x in enumerate(case.X):
        d = [scale * float((x / x.norm() - p / p.norm()).square().sum()) for p in case.P]
        label = int(case.y[i])
        total = sum(math.exp(-value) for k, value in enumerate(d) if include_positive or k != label)
        expected = d[label] + (math.log(total) if total else -math.inf)
        assert_same(losses[i].item(), expected, 1e-9)


def test_proxy_nca_does_not_lose_a_sample_to_underflow():
    X, P = leaves(torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    loss = procsim.proxy_nca_losses(X, P, torch.tensor([0]), scale=1000.0)
    assert loss.item() == 4000.0  # e^-4000 is 0
    P = torch.tensor([[-1.0, 0.5], [1.0, 0.3]], requires_grad=True)
    procsim.proxy_nca_losses(X, P, torch.tensor([0]), scale=1000.0).sum().backward()
    assert P.grad.abs().min() > 0


@given(small_losses, st.integers(1, 3))
def test_otsu_is_the_lowest_of_the_best_cuts(losses, min_group):
    cut = exact_cut(losses, min_group)
    middle = sum(cut.ordered[cut.index - 1 : cut.index + 1]) / 2 if cut.found else math.inf
    assert procsim.otsu_threshold(losses, min_group) == middle


losses_and_lambda = st.tuples(small_losses, st.sampled_from([0.03, 1.0, 7.0]))


@few
@given(losses_and_lambda, st.integers(-100, 100))
def test_claim_1_i_translation(case, shift):
    losses, lam = case
    sigma = procsim.confidence(losses, procsim.otsu_threshold(losses), lam)
    assert torch.equal(procsim.confidence(losses + shift, procsim.otsu_threshold(losses + shift), lam), sigma)


def test_of_equally_good_thresholds_the_lowest_is_taken_wherever_they_lie():
    losses = torch.tensor([0.0, 1, 1, -1, -1, 4, -4, 5, -5], dtype=torch.float64)  # ±0.5 are mirror images
    assert [procsim.otsu_threshold(losses + shift) - shift for shift in (0, -30, 7, 100)] == [-0.5] * 4


@few
@given(losses_and_lambda)
def test_claim_1_ii_and_iii_monotone_within_the_unit_interval(case):
    losses, lam = case
    threshold = procsim.otsu_threshold(losses)
    sigma = procsim.confidence(losses.sort().values, threshold, lam)
    assert (sigma.diff() <= 0).all()
    assert ((sigma > 0) & (sigma <= 1)).all()
    assert torch.equal(sigma < 1, losses.sort().values > threshold)


@few
@given(small_losses)
def test_claim_1_iv_and_v_limits_of_lambda(losses):
    threshold = procsim.otsu_threshold(losses)
    assert_same(procsim.confidence(losses, threshold, 1e-9), (losses <= threshold).double(), 1e-7)
    assert_same(procsim.confidence(losses, threshold, 1e12), torch.ones_like(losses), 1e-9)


@few
@given(st.floats(-3, 30), st.floats(-1, 1), st.floats(0.05, 5))
def test_superloss_is_the_minimum(value, tau, lam):
    losses = torch.tensor([value], dtype=torch.float64)
    loss, sigma = procsim.superloss(losses, tau, lam)
    # Eq. 1 at any sigma up to e: beyond it the objective is not convex, and Eq. 2 stops there.
    for other in torch.linspace(0.01, math.e, 40).tolist():
        assert loss.item() <= (value - tau) * other + lam * math.log(other) ** 2 + 1e-9
    assert 0 < sigma.item() <= math.e + 1e-7


@few
@given(cases, st.integers(1, 3), st.sampled_from([0.0, 1.0]), st.sampled_from([0.5, 2.0]))
def test_language_guidance_by_rows(case, k, shift, temperature):
    text = torch.randn(len(case.X), k, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    losses = {
        name: procsim.language_guidance_losses(case.X, text, case.y, shift, temperature, name)
        for name in ("forward", "backward")
    }
    B = len(case.X)
    for i in range(B):
        visual, language = [], []
        for j in range(B):
            if case.y[i] == case.y[j]:
                visual.append(1 + shift)
                language.append(1 + shift)
                continue
            visual.append(float(torch.cosine_similarity(case.X[i], case.X[j], dim=0)))
            language.append(float(torch.cosine_similarity(text[i], text[j], dim=1).mean()) + shift)
        p, q = (torch.softmax(torch.tensor(row).double() / temperature, 0) for row in (visual, language))
        assert_same(losses["forward"][i].item(), temperature**2 * float((q * (q / p).log()).sum()), 1e-6)
        assert_same(losses["backward"][i].item(), temperature**2 * float((p * (p / q).log()).sum()), 1e-6)


def test_language_guidance_has_a_gradient_in_the_samples_alone():
    X, text = leaves(torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64))
    y = torch.tensor([0, 0, 1, 2, 2])
    procsim.language_guidance_losses(X, text, y).sum().backward()
    assert X.grad.abs().sum() > 0
    assert text.grad is None
    assert torch.autograd.gradcheck(lambda X: procsim.language_guidance_losses(X, text, y, direction="backward"), (X,))
    with pytest.raises(ValueError, match="direction must be"):
        procsim.language_guidance_losses(X, text, y, direction="both")
