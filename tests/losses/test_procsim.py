"""ProcSim against the reference, its settings, the five conditions on the confidence, and resume."""

import itertools

import pytest
import torch

import python_ref
from robustdml_ops.losses import LanguageGuidanceLoss, MultiSimilarityLoss, NormalizedSoftmaxLoss, ProcSimLoss

B, C, D = 24, 6, 8
SETTINGS = [
    *itertools.product(["multi-similarity", "proxy-nca"], ["otsu", "mean", "gmm"], ["proxy-nca", "multi-similarity"]),
    ("callable", "otsu", "proxy-nca"),
]
TOLERANCES = {
    "otsu": {"rtol": 1e-6, "atol": 1e-7},
    "mean": {"rtol": 1e-5, "atol": 1e-6},  # kept in float32, and σ takes its rounding times 1/2λ = 5
    "gmm": {"rtol": 1e-3, "atol": 1e-4},
}


def batch(seed=0, size=B, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(C, (size,), generator=generator)
    centers = torch.randn(C, D, generator=generator, dtype=torch.float64)
    noise = torch.randn(size, D, generator=generator, dtype=torch.float64)
    given_labels = torch.where(torch.rand(size, generator=generator) < 0.3, (labels + 1) % C, labels)
    X = (centers[labels] + 0.4 * noise).to(dtype).requires_grad_()
    text = torch.randn(size, 3, 5, generator=generator, dtype=torch.float64)
    return X, given_labels, text


def reference_threshold(losses, kind):
    if kind == "otsu":
        return python_ref.otsu_threshold(losses)
    if kind == "mean":
        return float(losses.mean())
    from sklearn.mixture import GaussianMixture

    start = losses.quantile(torch.tensor([0.25, 0.75]).double()).reshape(2, 1).numpy()
    precision = torch.full((2, 1, 1), 1 / float(losses.var(correction=0))).double().numpy()
    mixture = GaussianMixture(2, weights_init=[0.5, 0.5], means_init=start, precisions_init=precision)
    mixture.fit(losses.numpy()[:, None])
    low = mixture.means_[:, 0].argmin()
    grid = torch.linspace(float(mixture.means_.min()), float(mixture.means_.max()), 20001).double()
    is_low = mixture.predict_proba(grid.numpy()[:, None])[:, low] >= 0.5
    (rises,) = (is_low[:-1] & ~is_low[1:]).nonzero()[0]
    return float(grid[rises])


def dml_losses(kind, X, y, P):
    if kind == "multi-similarity":
        return python_ref.multi_similarity_loss(X, y, reduction="none")
    if kind == "proxy-nca":
        return python_ref.proxy_nca_losses(X, P, y, 3.0)
    return python_ref.normalized_softmax_loss(X, y, P, 0.3, reduction="none")


@pytest.mark.parametrize("on_regularizer", [False, True])
@pytest.mark.parametrize(("dml", "threshold", "detector"), SETTINGS)
def test_every_row_of_the_ablation_is_the_reference(dml, threshold, detector, on_regularizer):
    X, y, text = batch()
    inner = NormalizedSoftmaxLoss(C, D, 0.3, reduction="none") if dml == "callable" else dml
    guide = LanguageGuidanceLoss(reduction="none")
    loss_function = ProcSimLoss(
        C, D, 0.1, 0.7, inner, threshold, detector, guide, on_regularizer, softmax_scale=3.0
    ).double()
    step = loss_function.step(X, y, text)

    P = loss_function.proxies
    alone = inner.W.t() if dml == "callable" else P
    detecting = dml_losses(detector, X, y, P).detach()
    tau = reference_threshold(detecting, threshold)
    sigma = python_ref.confidence(detecting, tau, 0.1)
    guided = python_ref.language_guidance_losses(X, text, torch.arange(B), shift=0.0)
    each = dml_losses(dml, X, y, alone)
    expected = python_ref.procsim_loss(sigma, each, sigma * guided if on_regularizer else guided, 0.7)
    if P is not None and dml != "proxy-nca":
        expected = expected + python_ref.proxy_nca_losses(X.detach(), P, y, 3.0).mean()

    tolerance = TOLERANCES[threshold]
    assert 0 < (sigma < 1).sum() < B
    torch.testing.assert_close(step.losses, detecting)
    torch.testing.assert_close(step.threshold.item(), tau, **tolerance)
    torch.testing.assert_close(step.confidence, sigma, **tolerance)
    torch.testing.assert_close(step.loss, expected, **tolerance)
    inputs = [X, *loss_function.parameters()]
    for ours, theirs in zip(torch.autograd.grad(step.loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        assert ours.abs().max() > 0
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_defaults_are_the_papers():
    X, y, _ = batch()
    default = ProcSimLoss(C, D).double()
    named = ProcSimLoss(C, D, 1.0, 0.0, "multi-similarity", "otsu", "proxy-nca").double()
    named.load_state_dict(default.state_dict())
    assert torch.equal(default(X, y), named(X, y))


@pytest.mark.parametrize("as_callable", [False, True])
def test_what_is_above_the_threshold_may_leave_the_pairs(as_callable):
    X, y, _ = batch()
    dml = MultiSimilarityLoss(reduction="none") if as_callable else "multi-similarity"
    plain, dropping = (ProcSimLoss(C, D, 0.1, dml=dml, drop_above=drop).double() for drop in (False, True))
    dropping.load_state_dict(plain.state_dict())
    step = dropping.step(X, y)
    below = step.losses <= step.threshold
    assert 0 < below.sum() < B
    rest = python_ref.multi_similarity_loss(X[below], y[below], reduction="none")  # σ is 1 below the threshold
    own = python_ref.proxy_nca_losses(X.detach(), dropping.proxies, y).mean()
    torch.testing.assert_close(step.loss, rest.sum() / B + own, rtol=1e-6, atol=1e-7)
    assert not torch.allclose(step.loss, plain(X, y))
    (dX,) = torch.autograd.grad(step.loss, X)
    assert (dX[~below] == 0).all() and (dX[below].abs().sum(1) > 0).any()
    assert torch.equal(dropping(X, y.to(torch.uint8)), dropping(X, y))  # which has no −1
    with pytest.raises(ValueError, match="drop_above=True leaves samples out of pairs"):
        ProcSimLoss(C, D, dml="proxy-nca", drop_above=True)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("threshold", ["otsu", "mean", "gmm"])
def test_batches_without_a_cut(size, threshold):
    """Fewer than four samples have no Otsu cut: all are trusted. No batch gives NaN."""
    X, y, _ = batch(size=size)
    step = ProcSimLoss(C, D, threshold=threshold).double().step(X, y)
    assert torch.isfinite(step.loss)
    assert step.confidence.shape == (size,)
    if threshold == "otsu":
        assert step.threshold == torch.inf
        assert (step.confidence == 1).all()
    step.loss.backward()
    assert torch.isfinite(X.grad).all()


@pytest.mark.parametrize("threshold", ["otsu", "gmm"])
def test_equal_losses_are_all_trusted(threshold):
    loss_function = ProcSimLoss(C, D, threshold=threshold)
    X, y = torch.ones(8, D), torch.zeros(8, dtype=torch.int64)  # one class, and no negatives
    step = loss_function.step(X, y)
    assert step.threshold == torch.inf
    assert (step.confidence == 1).all()
    assert torch.isfinite(step.loss)


def test_global_mean_is_over_all_batches_and_resumes():
    loss_function = ProcSimLoss(C, D, threshold="mean").double()
    seen = []
    for seed in range(4):
        X, y, _ = batch(seed, size=10 + seed)
        step = loss_function.step(X, y)
        seen.append(step.losses)
        torch.testing.assert_close(step.threshold, torch.cat(seen).mean(), rtol=1e-6, atol=0)
        if seed == 1:
            half_way = loss_function.state_dict()
            resumed = ProcSimLoss(C, D, threshold="mean").double()
            resumed.load_state_dict({name: value.clone() for name, value in half_way.items()})
    for seed in (2, 3):
        again = resumed.step(*batch(seed, size=10 + seed)[:2])
    assert torch.equal(again.threshold, step.threshold)
    assert torch.equal(again.loss, step.loss)
    loss_function.eval()
    loss_function.step(*batch(9)[:2])
    assert torch.equal(loss_function.threshold.mean, resumed.threshold.mean)


def test_mixture_does_not_depend_on_the_unit_of_the_losses():
    losses = torch.cat([torch.randn(60) * 0.2, 3 + torch.randn(30) * 0.4]).double()
    find = ProcSimLoss(C, D, threshold="gmm").threshold
    tau = find(losses)
    assert 0.5 < tau < 2.5
    torch.testing.assert_close(find(losses * 1e-4 + 7), tau * 1e-4 + 7, rtol=1e-9, atol=0)
    assert find(torch.tensor([torch.nan, torch.inf, 1.0])) == torch.inf


def test_half_precision_and_autocast():
    X, y, _ = batch(dtype=torch.float32)
    loss_function = ProcSimLoss(C, D, lam=0.1)
    exact = loss_function.step(X, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(loss_function.step(X, y), exact, rtol=1e-2, atol=1e-4)
    low = loss_function.step(X.detach().bfloat16().requires_grad_(), y)
    assert {tensor.dtype for tensor in low} == {torch.float32}
    torch.testing.assert_close(low.loss, exact.loss, rtol=2e-2, atol=2e-2)
    loss_function.threshold = ProcSimLoss(C, D, threshold="mean").threshold
    loss_function.bfloat16()
    assert loss_function.proxies.dtype == torch.bfloat16
    assert loss_function.threshold.mean.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"omega": 1}, ValueError, "omega=1 weighs a regularizer: give one, such as LanguageGuidanceLoss"),
        ({"dml": "triplet"}, ValueError, "dml='triplet': expected one of multi-similarity, proxy-nca"),
        ({"threshold": "median"}, ValueError, "threshold='median': expected one of otsu, mean, gmm"),
        ({"detector": "otsu"}, ValueError, "detector='otsu': expected one of multi-similarity, proxy-nca"),
    ],
)
def test_settings(arguments, error, message):
    with pytest.raises(error, match=message):
        ProcSimLoss(**{"num_classes": C, "embedding_size": D, **arguments})


def test_bad_batches():
    X, y, text = batch()
    loss_function = ProcSimLoss(C, D).double()
    with pytest.raises(TypeError, match="sample_weights"):
        loss_function(X, y, sample_weights=torch.ones(B))
    with pytest.raises(ValueError, match="guidance is for a regularizer, and there is none"):
        loss_function(X, y, guidance=text)
    with pytest.raises(ValueError, match=r"dml must give one loss per sample, \(24,\), got \(\): .*reduction='none'"):
        ProcSimLoss(C, D, dml=MultiSimilarityLoss()).double()(X, y)
    with pytest.raises(ValueError, match=r"regularizer must give one loss per sample"):
        ProcSimLoss(C, D, omega=1.0, regularizer=LanguageGuidanceLoss()).double()(X, y, guidance=text)
    with pytest.raises(TypeError, match=r"text_embeddings must be a torch\.Tensor, not NoneType"):
        ProcSimLoss(C, D, omega=1.0, regularizer=LanguageGuidanceLoss(reduction="none")).double()(X, y)
