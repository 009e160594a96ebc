"""The filter by the own class: against the reference, calibrated where the truth is known, and its errors."""

import pytest
import torch
from torch.nn.functional import normalize

from python_ref import own_class_p_clean
from robustdml_ops.robust import OwnClassFilter, own_class


def drawn(classes, D, samples, wrong, spread, seed=0):
    """Embeddings, labels of which a share is wrong, and whether they are right."""
    random = torch.Generator().manual_seed(seed)
    means = normalize(torch.randn(classes, D, generator=random), dim=1)
    truth = torch.arange(classes).repeat(samples)[torch.randperm(classes * samples, generator=random)]
    X = means[truth] + spread * torch.randn(len(truth), D, generator=random)
    other = torch.randint(classes, truth.shape, generator=random)
    labels = torch.where(torch.rand(truth.shape, generator=random) < wrong, other, truth)
    return X, labels, labels == truth, means


@pytest.mark.parametrize("kind", ["samples", "proxies", "centres"])
@pytest.mark.parametrize("size", [0, 1, 2, 61])
def test_a_batch_is_the_references(kind, size, monkeypatch):
    monkeypatch.setattr(own_class, "_ROWS", 10)
    X, labels, _, means = drawn(12, 6, 10, 0.4, 0.2)
    X, labels = X[:size], labels[:size]
    classes = {"samples": None, "proxies": means * 3, "centres": torch.stack([means, means.flip(0)], 1)}[kind]
    found = OwnClassFilter()(X, labels, classes)
    p_clean, share = own_class_p_clean(X, labels, classes)
    torch.testing.assert_close(found.log_p_clean.exp(), p_clean.float().clamp(min=1e-6), rtol=1e-3, atol=1e-3)
    assert float(found.wrong_share) == pytest.approx(share, abs=1e-5)
    assert torch.equal(found.keep, found.log_p_clean.exp() > 0.5)


@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.4, 0.6])
def test_probabilities_are_right_without_a_rate(wrong):
    """By the samples of classes of five, sorted by label; the share of wrong labels is found."""
    X, labels, right, _ = drawn(2000, 48, 5, wrong, 0.1)
    order = labels.argsort()
    X, labels, right = X[order], labels[order], right[order]
    judge = OwnClassFilter()
    for _ in range(2):
        results = [judge(*batch) for batch in zip(X.split(1000), labels.split(1000), strict=True)]
    keep, p = (torch.cat(found) for found in zip(*((r.keep, r.log_p_clean.exp()) for r in results), strict=True))
    assert float(results[-1].wrong_share) == pytest.approx(1 - float(right.float().mean()), abs=0.08)
    assert right[keep].float().mean() > (0.92 if wrong < 0.5 else 0.85)
    assert keep[right].float().mean() > (0.8 if wrong < 0.5 else 0.5)
    for low in (0.2, 0.4, 0.6, 0.8):
        within = (p >= low) & (p < low + 0.2)
        if within.sum() > 100:
            assert float(right[within].float().mean()) == pytest.approx(float(p[within].mean()), abs=0.25)


def test_samples_alone_have_the_share_of_all():
    """And a batch without any other sample of a class says nothing."""
    X, labels, _, _ = drawn(40, 16, 5, 0.3, 0.1)
    judge = OwnClassFilter()
    result = judge(torch.eye(16)[:4], torch.arange(4))
    assert result.keep.all() and not result.log_p_clean.any() and result.wrong_share == 0
    result = judge(torch.cat([X, X[:1]]), torch.cat([labels, torch.tensor([40])]))
    assert result.log_p_clean[-1].exp() == pytest.approx(1 - float(result.wrong_share))
    assert 0.1 < result.wrong_share < 0.5


def test_the_state_is_saved():
    X, labels, _, means = drawn(30, 8, 4, 0.4, 0.2)
    one, other = OwnClassFilter(window=3), OwnClassFilter(window=3)
    one(X[:60], labels[:60], means)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(X[60:], labels[60:], means).log_p_clean, other(X[60:], labels[60:], means).log_p_clean)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"classes": torch.ones(8, 30)},
            ValueError,
            r"must have the shape \(C, 8\) or .* got \(8, 30\): give its",
        ),
        ({"classes": torch.ones(30)}, ValueError, r"\(C, 8\) or \(C, H, 8\), got \(30,\)"),
        ({"labels": torch.full((4,), 30)}, IndexError, "30"),
        ({"embeddings": torch.full((4, 8), torch.nan)}, ValueError, "NaN"),
    ],
)
def test_bad_input(change, error, message):
    judge = OwnClassFilter()
    given = {"embeddings": torch.ones(4, 8), "labels": torch.arange(4), "classes": torch.ones(30, 8)}
    with pytest.raises(error, match=message):
        judge(**{**given, **change})
    assert not judge.own.any()
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        OwnClassFilter(window=0)
