"""Where the cut lies: by the batch, by the last batches, by the class."""

import math

import pytest
import torch

from robustdml_ops.robust.prism.thresholds import PerClassThreshold, Scores, SmoothTopR, TopR, otsu_cut


def all_known(values):
    return Scores(values, torch.ones(len(values), dtype=torch.bool))


def per_class(share, scores_kept, classes, cut=None):
    return PerClassThreshold(share, scores_kept, classes, torch.float64, cut)


@pytest.mark.parametrize(("noise_rate", "removed"), [(0, 0), (0.009, 0), (0.01, 1), (0.29, 29), (0.57, 57), (1, 100)])
def test_top_r_removes_the_decimal_share(noise_rate, removed):
    values = torch.randn(100)
    m = TopR(noise_rate)(all_known(values), torch.zeros(100))
    assert int((values <= m).sum()) == removed


def test_smooth_top_r_takes_the_mean_of_p_and_not_of_its_logarithm():
    smooth, labels = SmoothTopR(0.5, 2), torch.zeros(2)
    thresholds = [float(smooth(all_known(torch.tensor([p, 0.99]).log()), labels).exp()) for p in (0.8, 0.2, 0.4)]
    assert thresholds == pytest.approx([0.8, 0.5, 0.3])
    one = torch.tensor([0.0])  # R·B < 1: a quantile of 0
    assert float(smooth(all_known(one), labels[:1]).exp()) == pytest.approx(0.2)


def test_smooth_top_r_far_below_the_range_of_exp():
    smooth = SmoothTopR(0.5, 3)
    for value in (-1e4, -1.1e4, -1e4):
        m = smooth(all_known(torch.tensor([value, 0.0])), torch.zeros(2))
    assert float(m) == pytest.approx(-1e4 + math.log(2 / 3))


def test_per_class_holds_the_rate_in_every_class():
    """Levels are 100 apart: a common threshold would reject whole classes, and others never."""
    classes, steps, random = 6, 500, torch.Generator().manual_seed(0)
    for noise_rate in (0.1, 0.73):
        threshold, labels = per_class(noise_rate, 20, classes), torch.arange(classes)
        rejected = torch.zeros(classes)
        for _ in range(steps):
            values = 100.0 * labels + torch.randn(classes, generator=random, dtype=torch.float64)
            rejected += values <= threshold(all_known(values), labels)
        # Sum of correlated draws: twice the deviation of independent ones, three times that.
        bound = 6 * math.sqrt(noise_rate * (1 - noise_rate) / steps)
        assert ((rejected / steps - noise_rate).abs() < bound).all()


def test_a_new_class_gathers_scores_before_any_is_rejected():
    threshold, label = per_class(0.25, 8, 2), torch.tensor([1])
    unknown = Scores(torch.zeros(1, dtype=torch.float64), torch.tensor([False]))
    assert float(threshold(unknown, label)) == -math.inf
    thresholds = [float(threshold(all_known(torch.tensor([-1.0 * i])), label)) for i in range(1, 6)]
    assert thresholds == [-math.inf, -math.inf, -math.inf, -3, -3.75]  # ranks 0.25, 0.5, 0.75, 1, 1.25
    assert int(threshold.scored[1]) == 5  # the unknown one left nothing


def test_a_score_that_is_no_number_leaves_nothing():
    """On a GPU nobody looks at the embeddings before."""
    rings, smooth = per_class(0.5, 4, 1), SmoothTopR(0.5, 4)
    broken = all_known(torch.full((2,), torch.nan, dtype=torch.float64))
    for threshold in (rings, smooth):
        labels = torch.zeros(2, dtype=torch.int64)
        threshold(broken, labels)
        assert not threshold(all_known(torch.tensor([-2.0, -1.0], dtype=torch.float64)), labels).isnan().any()
    assert rings.scored.tolist() == [2]
    assert smooth.quantiles[-1] == -2


def two_kinds(right, wrong, classes, random):
    """Scores as vMF-Sim gives them: near 0 with a tail, and spread over two orders of magnitude."""
    values = torch.cat(
        [-0.2 * torch.randn(right, generator=random) ** 2, -60 * torch.randn(wrong, generator=random).exp()]
    )
    return all_known(values.double()), torch.randint(classes, (right + wrong,), generator=random)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_otsus_cut_finds_the_share_of_wrong_labels_by_itself(share):
    random = torch.Generator().manual_seed(0)
    threshold, wrong = per_class(0.9, 60, 10, otsu_cut), int(200 * share)
    for _ in range(20):
        scores, labels = two_kinds(200 - wrong, wrong, 10, random)
        rejected = scores.values <= threshold(scores, labels)
    assert rejected[200 - wrong :].float().mean() > 0.97
    assert rejected[: 200 - wrong].float().mean() < 0.02


def test_otsus_cut_leaves_every_class_a_share():
    """Class 0 scores far below the others, all of it."""
    random = torch.Generator().manual_seed(0)
    threshold, labels = per_class(0.6, 20, 2, otsu_cut), torch.tensor([0, 1]).repeat(8)
    kept = 0
    for _ in range(200):
        values = torch.where(
            labels == 0, -100 - 10 * torch.rand(16, generator=random), -torch.rand(16, generator=random)
        )
        m = threshold(all_known(values.double()), labels)
        kept += int((values[labels == 0] > m[labels == 0]).sum())
        assert (values > m)[labels == 1].all()
    assert kept / (200 * 8) == pytest.approx(0.4, abs=0.03)


def test_otsus_cut_waits_for_log_likelihoods_and_for_scores_that_differ():
    threshold, labels = per_class(0.8, 4, 1, otsu_cut), torch.zeros(6, dtype=torch.int64)
    values = torch.tensor([-0.1, -0.2, -0.3, -90.0, -70.0, -80.0], dtype=torch.float64)
    averages = all_known(values)._replace(vmf_pending=torch.tensor(True))
    assert threshold(averages, labels).tolist() == [-math.inf] * 6 and int(threshold.scored[0]) == 0
    unknown = Scores(torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.bool))
    for nothing in (unknown, all_known(torch.full((6,), math.nan, dtype=torch.float64)), all_known(values * 0)):
        assert threshold(nothing, labels).tolist() == [-math.inf] * 6
    m = threshold(all_known(values), labels)  # the class has six scores of 0: its floor is there
    assert ((values > m) == (values > -1)).all()
    broken = values.clone()
    broken[0] = math.nan
    assert not threshold(all_known(broken), labels).isnan().any()
