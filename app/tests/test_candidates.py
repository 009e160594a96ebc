"""Where classes are many, few of them are asked about, with the same answers."""

import numpy as np
import pytest
import torch

from robustdml.audit import LabelAuditor
from robustdml.audit import experts as asked
from robustdml.audit.class_model import ClassModel, Moments
from robustdml.filters.label_quality import label_quality
from tests.nightly import nightly_but

CLASSES = 400


def families(spread, seed=0):
    """Classes that resemble four others, six samples each."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), 6)
    means = random.normal(size=(CLASSES // 5, 48))[labels % (CLASSES // 5)] + random.normal(size=(CLASSES, 48))[labels]
    return (means + spread * random.normal(size=means.shape)).astype(np.float32), labels


@pytest.mark.parametrize("alike", nightly_but([True], [False, True]))
def test_wrong_labels_are_found_by_few_classes_as_by_all(alike, monkeypatch):
    X, labels = families(0.8)
    random = np.random.default_rng(1)
    wrong = random.random(len(labels)) < 0.2
    others = labels + CLASSES // 5 if alike else random.integers(0, CLASSES, len(labels))
    given = np.where(wrong, others % CLASSES, labels)
    of_all = label_quality(X, given).numpy()
    monkeypatch.setattr(asked, "MOST_PAIRS", 0)
    of_some = label_quality(X, given).numpy()
    assert not np.array_equal(of_all, of_some) and abs(of_all - of_some).mean() < 0.01
    assert ((of_some < 0.5) == (given != labels)).mean() > 0.97
    if not alike:
        assert (LabelAuditor().fit(X, given).issues_ == (given != labels)).mean() > 0.97


def test_what_is_drawn_stands_for_all_others(monkeypatch):
    X, labels = (torch.from_numpy(one) for one in families(0.8))
    model = ClassModel.fit(Moments.of(X, labels[:, None], torch.ones(len(X), 1), CLASSES))
    Z, share, weights = model.coordinates(X), torch.full((CLASSES,), 1 / CLASSES).log(), (0.05, 0.2)
    whole = asked.candidates(Z, model, share, None)
    monkeypatch.setattr(asked, "MOST_PAIRS", 0)
    listed = asked.shortlist(X, model)
    part = asked.candidates(Z, model, share, listed)
    assert listed.shape == (len(X), asked.LISTED) and (listed == labels[:, None]).any(1).float().mean() > 0.999
    near = whole.densest(6)
    assert (near == part.densest(6)).float().mean() > 0.98
    for exact, estimated in zip(whole.others(near, weights).T, part.others(near, weights).T, strict=True):
        assert (exact - estimated).abs().mean() < 0.1
