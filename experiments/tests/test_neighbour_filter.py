"""The rival that keeps samples whose neighbours agree with their label."""

import numpy as np
import torch

from experiments.comparison.ablations import ALL_ENTRIES, RIVALS
from experiments.comparison.neighbour_filter import neighbours_agree
from robustdml.config import TrainingConfig
from robustdml.noise import with_wrong_labels
from robustdml.train import train


def test_the_label_has_at_least_half_as_many_neighbours_as_the_commonest():
    rows = torch.nn.functional.normalize(torch.eye(2).repeat_interleave(20, 0) + 0.01 * torch.rand(40, 2))
    labels = torch.tensor([0] * 12 + [1] * 5 + [2] * 3 + [3] * 20)
    # Around the first: 12 of class 0, 5 of class 1, 3 of class 2.
    assert neighbours_agree(rows, labels).tolist() == [True] * 12 + [False] * 8 + [True] * 20
    labels[17] = 1  # 6 are half of 12
    assert neighbours_agree(rows, labels)[12:18].all()


def test_it_keeps_more_right_labels_than_wrong_ones(clusters):
    noisy = with_wrong_labels(clusters, "symmetric:0.3", seed=0)
    config = TrainingConfig(epochs=2, **ALL_ENTRIES["neighbour-filter"].settings)
    result = train(config, noisy, device="cpu")
    kept, wrong = result.scores["kept"], result.changed
    assert np.nanmean(kept[~wrong]) > 0.9 > 0.5 > np.nanmean(kept[wrong])


def test_a_rival_from_robusts_start_differs_in_the_start_alone():
    for name in RIVALS:
        own, principal = ALL_ENTRIES[name], ALL_ENTRIES[f"{name}-principal"]
        assert principal.settings == {**own.settings, "start": "principal"}
