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
