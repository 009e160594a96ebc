"""Contrastive losses are trained where labels are wrong, each from the same seeds."""

from dataclasses import replace

from experiments.bench import contrastive_noise
from robustdml.data import load_data


def test_each_loss_learns(monkeypatch):
    monkeypatch.setattr(contrastive_noise, "SAMPLES", 16)
    data = load_data("digits")
    data = replace(data, test=data.train)  # of ten classes nothing is learnt for others
    untrained = contrastive_noise.score(data, "SupCon", "none", 0, steps=0)
    right = {loss: contrastive_noise.score(data, loss, "none", 0, steps=60) for loss in contrastive_noise.LOSSES}
    assert min(right.values()) > untrained
    assert right[contrastive_noise.FILTERED] == right["SupCon"]  # the filter has not begun, and nothing is left out
