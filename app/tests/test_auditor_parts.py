"""The parts of the auditor: densities, explanations, rounds, duplicates and intervals."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from app.tests.test_auditor import corrupt, made_up
from robustdml.audit import LabelAuditor, experts, explanations, rounds
from robustdml.audit.auditor import wrong_share
from robustdml.audit.class_model import ClassModel, Moments
from robustdml.audit.explanations import anchored
from robustdml.audit.features import duplicate_groups, principal_rows
from robustdml.networks.models import unit_rows


def test_no_class_counts_more_under_another_name_than_under_its_own():
    """Class 0 has 2 samples of its own name and believes in 100 of name 1: these count as 2."""
    labels = torch.cat([torch.zeros(2), torch.ones(100)]).long()
    classes = torch.stack([labels, 1 - labels, torch.full((102,), 2)], 1)
    posterior = torch.tensor([[1.0, 0, 0]]).repeat(102, 1)
    posterior[2:] = torch.tensor([0.0, 1, 0])
    weights = anchored(labels, classes, posterior, 2)
    torch.testing.assert_close(weights[2:, 1].sum(), torch.tensor(2.0))
    assert (weights[:2] == posterior[:2]).all()


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, 0.0, 0.05), (0.2, 0.15, 0.35)])
def test_trials_bound_the_rate_of_labels_that_are_wrong_evenly(rate, least, most):
    """Classes look alike in pairs: overlap, where labels drawn at random look worse than those of the twin."""
    X, truth = made_up(12, 60)
    X[truth % 2 == 1] = X[truth % 2 == 0] + 0.2
    labels, _ = corrupt(truth, rate)
    given = torch.from_numpy(labels)
    asked = experts.Experts(principal_rows(X), given, 12)
    evidence, explained, _ = explanations.explanations(asked)
    assert least <= explanations.rate_bound(asked, evidence, explained[0]) <= most


def test_a_rate_above_the_bound_is_brought_down_to_it():
    right = torch.tensor([[0.9], [0.6], [0.2], [0.01]])
    posterior = torch.cat([right, 1 - right], 1)
    shifted = explanations.capped(posterior, 0.25)
    torch.testing.assert_close(shifted[:, 1].mean(), torch.tensor(0.25))
    torch.testing.assert_close(shifted.sum(1), torch.ones(4))
    assert (shifted[:, 0].diff() < 0).all()
    assert explanations.capped(posterior, 0.6) is posterior


def test_rounds_judge_together_by_their_likelihood():
    """Of a sample of class 0 two rounds name class 3, in different places, and one of them class 1 with more."""

    def one(likelihood: float, classes: list[int], posterior: list[float]) -> rounds._Round:
        overlap = torch.tensor([1.0 - max(posterior)])
        right = torch.tensor([[posterior[0]]])
        return rounds._Round(
            likelihood, torch.tensor([classes]), torch.tensor([posterior]), torch.tensor([0]), right, overlap
        )

    first, second = one(-1.0, [0, 1, 3, 9], [0.2, 0.4, 0.3, 0.1]), one(-1.0, [0, 3, 2, 9], [0.4, 0.3, 0.1, 0.2])
    found = rounds._together([first, second])
    for value, expected in ((found.right, 0.3), (found.proposed_right, 0.3), (found.no_class, 0.15)):
        torch.testing.assert_close(value, torch.tensor([expected]))
    assert found.proposed.tolist() == [3] and found.qualities.tolist() == [pytest.approx([0.2]), pytest.approx([0.4])]
    unlikely = rounds._together([first, one(-3.0, [0, 3, 2, 9], [0.4, 0.3, 0.1, 0.2])])
    assert unlikely.proposed.tolist() == [1] and abs(unlikely.right.item() - 0.2) < 1e-3


def test_without_neighbours_nobody_votes(monkeypatch):
    """Beyond a number of samples densities judge alone, also where classes are of unequal size."""
    monkeypatch.setattr(experts, "MOST_WITH_NEIGHBOURS", 10)
    explain = Mock(wraps=explanations.explain)
    monkeypatch.setattr(explanations, "explain", explain)
    X, truth = made_up(6, 40)
    X, truth = X[:200], truth[:200]
    labels, changed = corrupt(truth, 0.2)
    assert (LabelAuditor().fit(X, labels).issues_ == changed).mean() > 0.97
    assert {weights.votes for call in explain.call_args_list for weights in call.args[3]} == {0.0}


def test_samples_vary_by_one_in_the_coordinates_of_the_classes():
    """The covariance within C classes has N − C degrees of freedom, which counts where classes are small."""
    random = np.random.default_rng(0)
    labels = torch.arange(600) % 200
    X = torch.from_numpy(3 * random.normal(size=(200, 4))[labels] + random.normal(size=(600, 4)))
    model = ClassModel.fit(Moments.of(X.float(), labels[:, None], torch.ones(600, 1), 200))
    Z = model.coordinates(X.float()).reshape(3, 200, -1)
    variance = (Z - Z.mean(0)).square().sum((0, 1)) / (600 - 200)
    torch.testing.assert_close(variance, torch.ones(4), rtol=0.08, atol=0)


def test_a_sample_is_not_judged_by_its_own_copy():
    """The weight with which a row counts for a class is taken off: the density is that of a model without the row."""
    X, truth = made_up(5, 6, width=4)
    rows, labels = torch.from_numpy(X), torch.from_numpy(truth)
    model = ClassModel.fit(Moments.of(rows, labels[:, None], torch.ones(30, 1), 5))
    Z = model.coordinates(rows)
    density, _ = model.without_own(Z, labels[:, None], torch.ones(30, 1))
    counts, sums = model.counts.clone(), model.sums.clone()
    counts[0] -= 1
    sums[0] -= Z[0]
    left = ClassModel(model.transform, model.origin, model.between, counts, sums)
    torch.testing.assert_close(density[0, 0], left.log_densities()(Z)[0, 0])


def test_duplicates_by_the_thousand():
    features = np.repeat(np.eye(3, 5), 3000, axis=0)
    groups = duplicate_groups(features, 0.9995, np.zeros(9000, dtype=np.int64))
    assert (groups == np.repeat([0, 1, 2], 3000)).all()
    auditor = LabelAuditor().fit(features[::30], np.arange(300) // 100)
    assert np.isfinite(auditor.label_quality_).all() and auditor.issues_.sum() == 0


def test_interval_of_the_share_of_wrong_labels():
    """Of shares drawn at random, known for sure, 95 % and more of the intervals hold the share they were drawn from."""
    random = np.random.default_rng(0)
    inside = 0
    one_class, apart = np.zeros(50, dtype=np.int64), np.zeros(50)
    for _ in range(400):
        wrong = (random.random(50) < 0.2).astype(float)
        _, low, high = wrong_share(wrong, wrong[None], apart, one_class, 1)[0]
        inside += low <= 0.2 <= high
    assert inside / 400 >= 0.95
    assert np.isnan(wrong_share(np.zeros(1), np.zeros((1, 1)), np.zeros(1), np.zeros(1, dtype=np.int64), 2)[1]).all()
    # Explanations that disagree widen it.
    _, low, high = wrong_share(wrong, np.stack([wrong, 1 - wrong]), apart, one_class, 1)[0]
    assert low < 0.2 and high > 0.8


@pytest.mark.parametrize("seed", [1, 2])
def test_columns_of_zeros_have_no_part_in_the_axes(seed):
    """A network with dead units gives such features, and LAPACK does not converge on them."""
    random = np.random.default_rng(seed)
    features, live = np.zeros((80, 1280), np.float32), random.choice(1280, 33, replace=False)
    features[:, live] = random.normal(size=(80, 33)).clip(0) * random.exponential(size=33)
    rows = principal_rows(features)
    expected = unit_rows(features) - unit_rows(features).mean(0)
    torch.testing.assert_close(rows @ rows.T, expected @ expected.T, atol=1e-5, rtol=0)
    assert not principal_rows(np.ones((4, 300), np.float32)).any()
