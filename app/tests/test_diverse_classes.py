"""The auditor where the members of a class do not look alike: no runaway, no verdict by chance."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from app.tests.test_auditor import corrupt, made_up
from robustdml.audit import LabelAuditor
from robustdml.audit.auditor import NO_CLASS
from robustdml.audit.classes import doubt_classes
from robustdml.audit.experts import FOLDS, Experts, Votes
from robustdml.audit.explanations import anchored, bounded_by_size, explanations
from robustdml.audit.features import principal_rows
from robustdml.audit.rounds import Judgement, with_margins
from robustdml.audit.trial import Trial
from robustdml.loss_inputs import margins_of


def diverse(seed: int):
    """40 classes of 3 to 30 samples in four clusters of unequal size."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(40), np.exp(random.uniform(np.log(3), np.log(30), 40)).astype(int))
    share = random.dirichlet(np.full(4, 0.7), 40)
    place = (random.random((len(labels), 1)) > share.cumsum(1)[labels]).sum(1).clip(max=3)
    means = random.normal(size=(40, 4, 24))[labels, place]
    return (means + 0.9 * random.normal(size=means.shape)).astype(np.float32), labels


def test_members_of_diverse_classes_are_not_called_wrong():
    X, truth = diverse(21)
    auditor = LabelAuditor().fit(X, truth)
    assert np.isin(auditor.verdicts_, ("wrong", NO_CLASS)).mean() <= 0.02 and auditor.wrong_share_[1] <= 0.01
    labels, changed = corrupt(truth, 0.2)
    auditor = LabelAuditor().fit(X, labels)
    called = np.isin(auditor.verdicts_, ("wrong", NO_CLASS))
    assert called.sum() >= 3 and changed[called].mean() >= 0.8
    assert auditor.wrong_share_[1] <= changed.mean() <= auditor.wrong_share_[2]


def test_where_nothing_tells_the_classes_apart_no_label_is_called_wrong():
    random = np.random.default_rng(5)
    auditor = LabelAuditor().fit(random.normal(size=(400, 16)), random.integers(0, 15, 400))
    assert not np.isin(auditor.verdicts_, ("wrong", NO_CLASS)).any()
    assert auditor.wrong_share_[2] - auditor.wrong_share_[1] > 0.5


@pytest.mark.parametrize("learnt", [False, True])
def test_neither_order_nor_names_nor_scale_nor_copies_decide(learnt):
    X, truth = diverse(22)
    labels, _ = corrupt(truth, 0.2)
    first = LabelAuditor(features_learnt=learnt).fit(X, labels).verdicts_
    order = np.random.default_rng(0).permutation(len(X))
    names = np.random.default_rng(1).permutation(40)
    shuffled = LabelAuditor(features_learnt=learnt).fit(X[order], names[labels[order]]).verdicts_
    scaled = LabelAuditor(features_learnt=learnt).fit(4 * X, labels).verdicts_
    twice = LabelAuditor(features_learnt=learnt).fit(np.concatenate([X, X]), np.tile(labels, 2)).verdicts_
    assert (shuffled == first[order]).all() and (scaled == first).all() and (twice == np.tile(first, 2)).all()


@pytest.mark.parametrize("learnt", [False, True])
def test_copies_under_two_labels_are_one_group_and_not_both_right(learnt):
    X, truth = made_up(10, 12, spread=0.4)
    copied = np.arange(0, 120, 15)
    X = np.concatenate([X, X[copied]])
    labels = np.append(truth, (truth[copied] + 1) % 10)
    auditor = LabelAuditor(features_learnt=learnt).fit(X, labels)
    group, verdict = auditor.duplicate_groups_, auditor.verdicts_
    assert (group[copied] == group[120:]).all() and (group[copied] >= 0).all()
    assert not ((verdict[copied] == "right") & (verdict[120:] == "right")).any()


def test_no_class_counts_more_of_others_than_its_size_explains():
    """Class 0 has 4 samples of its own name, and believes in 3 of each of 20 other names: together these count as 4."""
    labels = torch.cat([torch.zeros(4), torch.arange(1, 21).repeat_interleave(3)]).long()
    classes = torch.stack([labels, torch.zeros_like(labels), torch.full_like(labels, 21)], 1)
    classes[:4, 1] = 1
    posterior = torch.tensor([[0.0, 1, 0]]).repeat(len(labels), 1)
    posterior[:4] = torch.tensor([1.0, 0, 0])
    weights = bounded_by_size(classes, anchored(labels, classes, posterior, 21), 21)
    torch.testing.assert_close(weights[4:, 1].sum(), torch.tensor(4.0))
    assert (weights[:4] == posterior[:4]).all()


def test_each_fold_has_its_part_of_every_class():
    """Folds at random left classes of few samples without any to learn from."""
    X, truth = made_up(30, 5)
    X = torch.from_numpy(X)
    fold = Experts(X, torch.from_numpy(truth), 30, columns=X).fold
    counts = np.zeros((30, FOLDS), dtype=int)
    np.add.at(counts, (truth, fold.numpy()), 1)
    assert (counts == 1).all()


def test_margins_leave_the_sample_out_of_its_own_class():
    X = torch.tensor([[1.0, 0], [0, 1], [0, 2], [-1, 0]])
    found = margins_of(X, torch.tensor([0, 0, 1, 2]), 3)
    root = 0.5**0.5
    # Means: (1, 1) of class 0, (0, 1) of class 1, (−1, 0) of class 2. A sample alone in its class has a cosine of 0.
    torch.testing.assert_close(found, torch.tensor([0.0 - 0.0, 0.0 - 1.0, 0.0 - root, 0.0 - 0.0]))


def judged(right: torch.Tensor) -> Judgement:
    n = len(right)
    none, labels = torch.zeros(n), torch.zeros(n, dtype=torch.int64)
    return Judgement(right, labels, 0.9 * (1 - right), none, labels, right[None].float(), none)


def test_margins_count_as_far_as_they_agree_with_the_features():
    random = np.random.default_rng(0)
    wrong = random.random(2000) < 0.3
    q = torch.sigmoid(torch.from_numpy(np.where(wrong, -1.0, 1.0) + random.normal(size=2000))).double()
    telling = torch.from_numpy(np.where(wrong, -0.2, 0.3) + 0.3 * random.normal(size=2000))
    found = with_margins(judged(q), telling).right
    assert average_precision_score(wrong, -found) > average_precision_score(wrong, -q) + 0.02
    assert float(found.mean()) == pytest.approx(float(q.mean()), abs=1e-3)
    silent = torch.from_numpy(random.normal(size=2000))
    np.testing.assert_allclose(with_margins(judged(q), silent).right, q, atol=0.05)
    # Margins that speak against the features, equal ones and missing ones say nothing.
    for none in (-telling, torch.zeros(2000), torch.full((2000,), torch.nan)):
        assert (with_margins(judged(q), none).right == q).all()
    partly = telling.clone()
    partly[::2] = torch.nan
    assert torch.isfinite(with_margins(judged(q), partly).right).all()


def test_margins_that_are_none():
    for margins, words in (
        (np.zeros(3), "margins must have 4 values"),
        ([0, 0, np.inf, 0], r"margins\[2\] is infinite"),
    ):
        with pytest.raises(ValueError, match=words):
            LabelAuditor().fit(np.eye(4), [0, 1, 0, 1], margins=margins)


@pytest.mark.parametrize("learnt", [False, True])
def test_a_sample_whose_neighbours_speak_for_the_proposal_is_of_some_class(learnt):
    """Pictures of one side of a thing, far from the mean of their class, come under another label."""
    X, truth = made_up(40, 12, spread=0.35, seed=3, freedom=2)
    means = np.stack([X[truth == label].mean(0) for label in range(40)])
    moved = np.argsort(-np.linalg.norm(X - means[truth], axis=1))[10:150:10]
    labels = truth.copy()
    labels[moved] = (truth[moved] + 7) % 40
    auditor = LabelAuditor(features_learnt=learnt).fit(X, labels)
    right = auditor.proposed_labels_[moved] == truth[moved]
    near = X / np.linalg.norm(X, axis=1, keepdims=True)
    cosines = near[moved] @ near.T
    cosines[np.arange(len(moved)), moved] = -1
    spoken = (labels[np.argsort(-cosines, axis=1)[:, :5]] == auditor.proposed_labels_[moved, None]).sum(1) >= 2
    assert (right & spoken).any()
    assert not (auditor.verdicts_[moved][right & spoken] == NO_CLASS).any()


def test_questions_of_merges_end_where_the_evidence_does():
    """Classes of three samples mix by chance; of two halves of one class of 24 enough samples say so."""
    random = np.random.default_rng(1)
    labels = np.concatenate([np.repeat(np.arange(100), 3), np.repeat([100, 101], 12)])
    drawn = np.where(labels == 101, 100, labels)
    means = random.normal(size=(102, 6))
    X = (means[drawn] + 0.6 * random.normal(size=(len(labels), 6))).astype(np.float32)
    found = doubt_classes(X, labels, 102, X).one
    assert found[0][:2] == (100, 101) and len(found) <= 2
    assert [pair[2] for pair in found] == sorted((pair[2] for pair in found), reverse=True)


def test_a_trial_trusts_the_experts_that_find_wrong_labels():
    """All neighbours vote for class 0, which says nothing: wrong labels are found by the other experts."""
    X, truth = made_up(8, 40)
    labels, wrong = corrupt(truth, 0.2)
    given = torch.from_numpy(labels)
    asked = Experts(principal_rows(X), given, 8)
    evidence, explained, _ = explanations(asked)
    trial = Trial(given, 8)
    assert (trial.drawn != given).all()
    asked.votes = Votes(torch.zeros(len(X), 5, dtype=torch.int64), torch.ones(len(X), 5))
    trial.ask(asked, evidence, explained[0].weights)
    odds = trial.evidence().numpy()
    assert roc_auc_score(wrong, odds) > 0.99 and odds[~wrong].max() < np.median(odds[wrong])
