"""The cut that steps back: nothing is rejected of clean data, nor of classes too small to judge."""

import pytest
import torch
from states import clusters

from robustdml_ops.robust import PRISM
from robustdml_ops.robust.prism.thresholds import CautiousThreshold, PerClassThreshold, Scores, otsu_cut, wrong_rate

CLASSES, DIM = 10, 16


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
    assert float(wrong_rate(scores, scores.known)) == 0.5
    assert float(wrong_rate(scores, torch.tensor([True, False, True, True]))) == 0
    few = scores._replace(other_labels=others[:4])
    assert wrong_rate(few, scores.known).isnan()
    assert wrong_rate(scores, torch.zeros(4, dtype=torch.bool)).isnan()


def test_the_estimate_is_the_mean_of_the_last_batches():
    threshold = CautiousThreshold(PerClassThreshold(0.8, 5, 2, torch.float32, otsu_cut), 2)
    others = torch.full((10,), -20.0)
    assert threshold.wrong_rate.isnan()
    for wrong in (10, 5, 0):
        values = torch.where(torch.arange(10) < wrong, -30.0, -0.1)
        scores = Scores(values, torch.ones(10, dtype=torch.bool), class_rows=torch.full((10,), 9), other_labels=others)
        threshold(scores, torch.zeros(10, dtype=torch.int64))
    # Twice 0.5 and twice 0; the first batch is forgotten.
    assert float(threshold.wrong_rate) == 0.5


def test_only_the_cautious_cut_has_an_estimate():
    prism = PRISM(4, 8, "vmf", threshold="otsu", memory_size=10, vmf_start=0)
    with pytest.raises(RuntimeError, match="cautious"):
        prism.wrong_share  # noqa: B018
