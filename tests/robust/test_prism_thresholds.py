"""Where the cut lies: by the batch, by the last batches, by the class; and the cautious one, which steps back."""

import math

import pytest
import torch
from states import clusters

from robustdml_ops.robust import PRISM
from robustdml_ops.robust.prism.thresholds import (
    CautiousThreshold,
    PerClassThreshold,
    Scores,
    SmoothTopR,
    TopR,
    otsu_cut,
    wrong_share,
)

CLASSES, DIM = 10, 16


def all_known(values):
    return Scores(values, torch.ones(len(values), dtype=torch.bool))


def per_class(share, window, classes, cut=None):
    return PerClassThreshold(share, window, classes, torch.float64, cut)


@pytest.mark.parametrize(("noise_rate", "removed"), [(0, 0), (0.009, 0), (0.01, 1), (0.29, 29), (0.57, 57), (1, 100)])
def test_top_r_removes_the_decimal_share(noise_rate, removed):
    values = torch.randn(100)
    m = TopR(noise_rate)(all_known(values), torch.zeros(100))
    assert int((values <= m).sum()) == removed


def test_smooth_top_r_far_below_the_range_of_exp():
    smooth = SmoothTopR(0.5, 3)
    for value in (-1e4, -1.1e4, -1e4):
        m = smooth(all_known(torch.tensor([value, 0.0])), torch.zeros(2))
    assert float(m) == pytest.approx(-1e4 + math.log(2 / 3))


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


def judge(threshold, x, labels, epochs=3, batch=100):
    """Share of right and wrong labels rejected in the last epoch; the prism."""
    prism = PRISM(CLASSES, DIM, "vmf", threshold=threshold, memory_size=len(x), vmf_start=0, num_samples=len(x))
    ids = torch.arange(len(x))
    prism.enqueue(x, labels, torch.ones(len(x), dtype=torch.bool), ids)
    keep = torch.ones(len(x), dtype=torch.bool)
    random = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=random).split(batch):
            keep[rows] = prism(x[rows], labels[rows], ids[rows]).keep
            prism.enqueue(x[rows], labels[rows], keep[rows], ids[rows])
    return keep, prism


def test_clean_but_hard_labels_are_kept_which_otsu_cuts():
    x, labels, _ = clusters(CLASSES, 60, DIM, spread=0.3, wrong=0.0)
    always, _ = judge("otsu", x, labels)
    cautious, prism = judge("cautious", x, labels)
    assert (~always).float().mean() > 0.02
    assert cautious.all()
    assert prism.wrong_share < 0.04


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_wrong_labels_are_found_and_their_share_is_estimated(rate):
    x, labels, true = clusters(CLASSES, 60, DIM, spread=0.15, wrong=rate)
    changed = labels != true
    keep, prism = judge("cautious", x, labels)
    assert float(prism.wrong_share) == pytest.approx(float(changed.float().mean()), abs=0.1)
    assert (~keep[changed]).float().mean() > 0.95
    assert keep[~changed].float().mean() > 0.95


def test_samples_of_classes_too_small_to_judge_are_kept():
    values = torch.tensor([-0.1] * 6 + [-30.0] * 4)
    rows = torch.tensor([9] * 8 + [4, 5])
    scores = Scores(values, torch.ones(10, dtype=torch.bool), class_rows=rows, other_labels=torch.full((10,), -20.0))
    threshold = CautiousThreshold(PerClassThreshold(1.0, 5, 1, torch.float32, otsu_cut), 2)
    keep = scores.values > threshold(scores, torch.zeros(10, dtype=torch.int64))
    assert keep.tolist() == [True] * 6 + [False, False, True, False]


def test_the_estimate_by_hand():
    values = torch.tensor([-1.0, -30.0, -2.0, -3.0])
    others = torch.tensor([-10.0, -20.0, -20.0, torch.nan]).repeat(4)
    scores = Scores(values, torch.ones(4, dtype=torch.bool), class_rows=torch.full((4,), 9.0), other_labels=others)
    # One of the four lies below the median of −20: twice a quarter.
    assert float(wrong_share(scores, scores.known)) == 0.5
    assert float(wrong_share(scores, torch.tensor([True, False, True, True]))) == 0
    few = scores._replace(other_labels=others[:4])
    assert wrong_share(few, scores.known).isnan()
    assert wrong_share(scores, torch.zeros(4, dtype=torch.bool)).isnan()


def test_the_estimate_is_the_mean_of_the_last_batches():
    threshold = CautiousThreshold(PerClassThreshold(0.8, 5, 2, torch.float32, otsu_cut), 2)
    others = torch.full((10,), -20.0)
    assert threshold.wrong_share.isnan()
    for wrong in (10, 5, 0):
        values = torch.where(torch.arange(10) < wrong, -30.0, -0.1)
        scores = Scores(values, torch.ones(10, dtype=torch.bool), class_rows=torch.full((10,), 9), other_labels=others)
        threshold(scores, torch.zeros(10, dtype=torch.int64))
    # Twice 0.5 and twice 0; the first batch is forgotten.
    assert float(threshold.wrong_share) == 0.5
