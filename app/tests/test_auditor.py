"""The auditor on made-up classes of which the truth is known."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import check_estimator

from robustdml.audit import LabelAuditor, rounds
from robustdml.audit.auditor import NO_CLASS, NOT_SURE
from tests.nightly import nightly_but


def made_up(num_classes: int, size, width: int = 24, spread: float = 0.7, seed: int = 0, freedom: float | None = None):
    """Rows and labels of classes of one size, or of one each; with degrees of freedom they have heavy tails."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_classes), size)
    tails = 1 if freedom is None else np.sqrt(freedom / random.chisquare(freedom, size=(len(labels), 1)))
    means = random.normal(size=(num_classes, width))
    return (means[labels] + spread * tails * random.normal(size=(len(labels), width))).astype(np.float32), labels


def corrupt(labels: NDArray[np.int64], rate: float, seed: int = 1):
    random = np.random.default_rng(seed)
    changed = random.random(len(labels)) < rate
    noisy = np.where(changed, (labels + random.integers(1, labels.max() + 1, len(labels))) % (labels.max() + 1), labels)
    return noisy, changed


@pytest.mark.parametrize("rate", nightly_but([0.05, 0.5], [0.05, 0.3, 0.5]))
def test_wrong_labels_are_found_and_put_right(rate):
    X, truth = made_up(12, 40)
    labels, changed = corrupt(truth, rate)
    auditor = LabelAuditor().fit(X, labels)
    found = auditor.issues_
    assert (found & changed).sum() >= 0.97 * changed.sum()
    assert (found & changed).sum() >= 0.95 * found.sum()
    assert (auditor.proposed_labels_[found & changed] == truth[found & changed]).mean() > 0.97
    _, low, high = auditor.wrong_share_
    assert low <= changed.mean() <= high and high - low < 0.1 + 0.7 * rate


@pytest.mark.parametrize("seeds", nightly_but([2], [2, 3]))
def test_probabilities_mean_what_they_say_where_classes_overlap(seeds):
    errors = []
    for seed in range(seeds):
        X, truth = made_up(10, 80, width=8, spread=1.1, seed=seed)
        labels, changed = corrupt(truth, 0.3, seed=seed + 1)
        quality = LabelAuditor().fit(X, labels).label_quality_
        groups = np.minimum((quality * 10).astype(int), 9)
        errors.append(sum(abs((~changed - quality)[groups == g].sum()) for g in set(groups)) / len(quality))
    assert np.mean(errors) < 0.08


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_checked_labels_tell_of_the_others(rate):
    """Where classes overlap: with 30 of the suspects the share is near the truth, and these are believed themselves."""
    X, truth = made_up(20, 30, width=8, spread=1.2)
    labels, changed = corrupt(truth, rate)
    before = LabelAuditor().fit(X, labels)
    suspects = np.argsort(before.label_quality_)[: int((before.verdicts_ != "right").sum())]
    places = suspects[np.linspace(0, len(suspects) - 1, 30).astype(int)]
    checked = np.full(len(labels), np.nan)
    checked[places] = ~changed[places]
    after = LabelAuditor().fit(X, labels, checked)
    errors = [abs(each.wrong_share_[0] - changed.mean()) for each in (before, after)]
    assert errors[1] < max(0.5 * errors[0], 0.04)
    assert rate > 0 or errors[0] > 0.02
    assert after.wrong_share_[1] <= changed.mean() <= after.wrong_share_[2]
    assert np.array_equal(after.label_quality_[places], ~changed[places])
    assert set(after.verdicts_[places[changed[places]]]) <= {"wrong", NO_CLASS}
    assert (after.proposal_probability_ + after.no_class_probability_ <= 1 + 1e-5).all()
    others = np.isnan(checked)
    order = np.argsort(before.label_quality_[others], kind="stable")
    assert (np.diff(after.label_quality_[others][order]) >= -1e-6).all()
    nothing = LabelAuditor().fit(X, labels, np.full(len(labels), np.nan))
    assert np.array_equal(nothing.label_quality_, before.label_quality_)


def test_a_class_of_many_samples_is_no_more_in_doubt_than_one_of_few():
    """Sizes from 3 to 200: a small class must not take a whole large one for its own under another name."""
    sizes = np.maximum(3, 200 // np.arange(1, 41))
    X, truth = made_up(40, sizes, spread=0.6)
    labels, changed = corrupt(truth, 0.3)
    quality = LabelAuditor().fit(X, labels).label_quality_
    large = sizes[truth] >= 50
    assert roc_auc_score(~changed, quality) > 0.97
    assert (quality[large & ~changed] < 0.5).mean() < 0.05


@pytest.mark.parametrize(
    ("shape", "spread", "called", "share"),
    [((12, 40, 24), 0.7, 0.01, 0.01), ((8, 60, 6), 1.0, 0.02, 0.02), ((8, 60, 6), 2.0, 0.02, 0.08)],
)
def test_right_labels_are_not_called_wrong(shape, spread, called, share):
    """Also where classes overlap: nobody can tell them apart for sure, and the labels say nothing of wrong ones."""
    X, truth = made_up(*shape, spread=spread)
    auditor = LabelAuditor().fit(X, truth)
    assert np.isin(auditor.verdicts_, ("wrong", NO_CLASS)).mean() <= called
    assert auditor.wrong_share_[1] <= share
    if spread < 1:  # Classes that are apart
        assert auditor.issues_.mean() <= called and auditor.wrong_share_[0] < share


def test_small_classes_do_not_look_right_whatever_their_labels_are():
    """With four samples a class in 100 dimensions the covariance fits any labels that it has seen."""
    X, truth = made_up(60, 4, width=100)
    labels, changed = corrupt(truth, 0.25)
    auditor = LabelAuditor().fit(X, labels)
    assert auditor.issues_[changed].mean() > 0.6 and auditor.issues_[~changed].mean() < 0.1
    assert auditor.wrong_share_[1] <= changed.mean() <= auditor.wrong_share_[2]


def test_classes_of_several_clusters():
    """A normal density fits such classes badly; their neighbours know better."""
    random = np.random.default_rng(0)
    truth = np.repeat(np.arange(8), 80)
    X = random.normal(size=(8, 4, 16))[truth, random.integers(4, size=640)] + 0.4 * random.normal(size=(640, 16))
    labels, changed = corrupt(truth, 0.3)
    issues = LabelAuditor().fit(X, labels).issues_
    assert (issues & changed).sum() >= 0.95 * changed.sum() and (issues & ~changed).sum() <= 0.02 * (~changed).sum()


def test_labels_mixed_up_between_classes():
    """Half of each class goes to its two sisters: each name keeps most of its own samples, and no more than that."""
    X, truth = made_up(12, 60)
    random = np.random.default_rng(2)
    changed = random.random(len(truth)) < 0.45
    labels = np.where(changed, truth // 3 * 3 + (truth + random.integers(1, 3, len(truth))) % 3, truth)
    found = LabelAuditor().fit(X, labels).issues_
    assert (found == changed).mean() > 0.9


@pytest.mark.parametrize("seed", nightly_but([0], range(3)))
def test_wrong_labels_that_pulled_their_samples_are_found(seed):
    """Neighbours of a sample that its wrong label pulled have that label too; densities alone find it.

    Classes are alike in threes; a third is taken for the next one, and lies a quarter of the way to its mean.
    """
    random = np.random.default_rng(seed)
    truth = np.repeat(np.arange(30), 40)
    means = np.repeat(random.normal(size=(10, 24)), 3, axis=0) + 0.5 * random.normal(size=(30, 24))
    labels = np.where(random.random(1200) < 0.3, truth // 3 * 3 + (truth + 1) % 3, truth)
    X = means[truth] + 0.25 * (means[labels] - means[truth]) + 0.4 * random.normal(size=(1200, 24))
    for learnt in (True, False):
        found = LabelAuditor(features_learnt=learnt).fit(X, labels).issues_[truth != labels]
        assert (found.mean() > 0.7) == learnt


def test_two_classes():
    """A label speaks for its class, however many seem wrong at first."""
    right = []
    for seed in range(3):
        X, truth = made_up(2, 100, seed=seed)
        labels, changed = corrupt(truth, 0.2, seed=seed + 1)
        right.append(LabelAuditor(features_learnt=True).fit(X, labels).issues_ == changed)
    assert np.mean(right) > 0.96


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_two_classes_of_unequal_size(rate):
    """A wrong label can only be the other one, however rare that is."""
    X, truth = made_up(2, 200, width=8, spread=1.5)
    X, truth = X[:260], truth[:260]
    labels, changed = corrupt(truth, rate)
    auditor = LabelAuditor().fit(X, labels)
    assert auditor.issues_[~changed].mean() <= 0.06
    assert auditor.wrong_share_[1] <= changed.mean() <= auditor.wrong_share_[2]


def test_a_class_of_one_sample_is_not_judged():
    X, truth = made_up(8, 30)
    X = np.concatenate([X, X[truth == 3][:1] + 0.01])
    auditor = LabelAuditor().fit(X, np.append(truth, 8))
    assert auditor.verdicts_[-1] == NOT_SURE
    assert auditor.small_classes_.tolist() == [8]


@pytest.mark.parametrize("seeds", nightly_but([2], [2, 4]))
def test_samples_of_no_class(seeds):
    """Some directions drawn at random are near a class by chance: a quarter of them are called, some of no class."""
    found = []
    for seed in range(seeds):
        X, truth = made_up(12, 40, seed=seed)
        random = np.random.default_rng(seed + 3)
        strangers = random.normal(size=(8, 24)).astype(np.float32)
        auditor = LabelAuditor().fit(np.concatenate([X, strangers]), np.append(truth, np.arange(8)))
        called = auditor.verdicts_[-8:]
        found.append([np.isin(called, ("wrong", NO_CLASS)).mean(), (called == NO_CLASS).mean()])
        assert (auditor.verdicts_[:-8] == NO_CLASS).mean() < 0.01
    assert (np.mean(found, 0) >= (1 / 4, 1 / 8)).all()


@pytest.mark.parametrize("seeds", nightly_but([1], [1, 2]))
def test_right_samples_far_out_in_their_class_are_no_strangers(seeds):
    """Classes with heavier tails than a normal distribution: normal densities call 0.7 % of the samples strangers."""
    called = []
    for seed in range(seeds):
        for freedom in (3, 6):
            X, truth = made_up(12, 60, spread=0.5, seed=seed, freedom=freedom)
            called.append((LabelAuditor().fit(X, truth).verdicts_ == NO_CLASS).mean())
    assert np.mean(called) < 0.004


def test_near_duplicates():
    X, truth = made_up(4, 10)
    X = np.concatenate([X, X[:3] * 2, X[:1]])
    groups = LabelAuditor().fit(X, np.append(truth, [1, 1, 1, 0])).duplicate_groups_
    assert groups[[0, 40, 43]].tolist() == [0, 0, 0]
    assert groups[[1, 41]].tolist() == [1, 1] and groups[[2, 42]].tolist() == [2, 2]
    assert (groups[3:40] == -1).all()
    # Of two classes of the same samples each looks, without its own sample, like the other.
    X, truth = made_up(4, 6)
    groups = LabelAuditor().fit(np.concatenate([X, X[:6]]), np.append(truth, [4] * 6)).duplicate_groups_
    assert (groups[:6] == groups[24:]).all() and (groups[:6] >= 0).all()


@pytest.mark.parametrize("seed", nightly_but([0], range(3)))
def test_overlap_with_far_samples_is_not_taken_for_a_certain_rate(seed):
    """Right labels of overlapping classes with heavy tails: the interval holds their rate of 0."""
    X, labels = made_up(10, 50, width=8, spread=1.2, seed=seed, freedom=2)
    assert LabelAuditor().fit(X, labels).wrong_share_[1] == 0


@pytest.mark.nightly
def test_scikit_learn_habits(monkeypatch):
    monkeypatch.setattr(rounds, "ROUNDS", (2, 1))  # Habits do not depend on how often a label is judged.
    checks = check_estimator(LabelAuditor(), on_fail=None, on_skip=None)
    failed = [check for check in checks if check["status"] == "failed"]
    assert not failed, [(check["check_name"], check["exception"]) for check in failed]


def test_same_answer_twice_and_for_other_names():
    X, truth = made_up(6, 30)
    labels, _ = corrupt(truth, 0.2)
    first = LabelAuditor().fit(X, labels)
    names = np.array(["f", "b", "c", "a", "e", "d"])
    second = LabelAuditor().fit(X * np.float32(5e37), names[labels])
    # The regression ends after few steps, which magnify the rounding of scaled rows.
    np.testing.assert_allclose(first.label_quality_, second.label_quality_, atol=1e-2)
    assert (names[first.proposed_labels_] == second.proposed_labels_).all()
    assert (LabelAuditor().fit(X[::30], names).verdicts_ == NOT_SURE).all()


def test_bad_input():
    """Beside what scikit-learn's own checks ask for."""
    for y, words in (([1] * 4, "1 class"), ([0.5, 1.5, 2.5, 3.25], "Unknown label type"), ([0, 0, 1, 1], "are equal")):
        with pytest.raises(ValueError, match=words):
            LabelAuditor().fit(np.ones((4, 2)), y)
    for checked, words in (
        ([1.0], "4 values"),
        ([1, np.nan, 0.5, 0], r"checked\[2\] = 0.5"),
        (["right"] * 4, "checked: .*or NaN"),
    ):
        with pytest.raises(ValueError, match=words):
            LabelAuditor().fit(np.eye(4), [0, 1, 0, 1], checked)
    with pytest.raises(ValueError, match="duplicate_similarity=0"):
        LabelAuditor(duplicate_similarity=0).fit(np.eye(4), [0, 1, 0, 1])
