"""Where the embedding layer starts: the features' own axes, whitened within classes, as wide as they must be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from app.tests.conftest import begun, mixture
from robustdml.config import TrainingConfig
from robustdml.data import Split
from robustdml.evaluation import judged
from robustdml.networks.models import unit_length
from robustdml.networks.start import _of_each_class, choose_start, make_start
from robustdml.noise import with_wrong_labels


def cosines(x):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit @ unit.T


def filled(x, width):
    layer = nn.Linear(x.shape[1], width)
    make_start(x, width).fill(layer)
    return layer


@pytest.mark.parametrize("count", [240, 10])  # more samples than features, and fewer
def test_a_layer_that_is_wide_enough_starts_with_the_features_own_cosines(count):
    x = mixture().train.inputs[:count]
    layer = filled(x, 64)
    np.testing.assert_allclose(cosines(layer(torch.from_numpy(x)).detach().numpy()), cosines(x), atol=1e-5)
    # As long as He's rows, so that learning rates mean the same.
    assert float(layer.weight.detach().square().sum()) == pytest.approx(2 * 24, rel=1e-4)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_axes_do_not_depend_on_the_length_of_rows(scale):
    x = mixture().train.inputs
    x[3] = 0
    axes, scaled = make_start(x, 8).axes, make_start((x * scale).astype(np.float32), 8).axes
    np.testing.assert_allclose((scaled[:8] @ axes[:8].T).abs().numpy(), np.eye(8), atol=1e-3)


def test_a_narrow_layer_starts_with_the_strongest_axes():
    random = np.random.default_rng(0)
    strong = random.normal(size=(200, 4)) @ random.normal(size=(4, 30))
    x = (strong + 0.01 * random.normal(size=(200, 30))).astype(np.float32)
    np.testing.assert_allclose(cosines(filled(x, 4)(torch.from_numpy(x)).detach().numpy()), cosines(x), atol=5e-3)


def whitened_by_hand(x, labels, rows):
    """Unit rows times (S/m + I)^(-1/2) of some of them."""
    unit = x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True)
    means = {c: unit[rows][labels[rows] == c].mean(0) for c in np.unique(labels[rows])}
    within = unit[rows] - np.stack([means[c] for c in labels[rows]])
    variances, turn = np.linalg.eigh(within.T @ within)
    return unit @ (turn / np.sqrt(variances / variances.mean() + 1)) @ turn.T


@pytest.mark.parametrize("step", [1, 12])  # more samples than features, and fewer
def test_a_whitened_start_divides_by_the_spread_within_classes(step):
    train_split = mixture().train
    x, labels = train_split.inputs[::step], train_split.labels[::step]
    rows = np.flatnonzero(np.arange(len(x)) % 5)  # the labels that are believed
    start = make_start(x, 64).whitened(x, labels, rows)
    layer = nn.Linear(24, 64)
    start.fill(layer)
    expected = cosines(whitened_by_hand(x, labels, rows))
    np.testing.assert_allclose(cosines(layer(torch.from_numpy(x)).detach().numpy()), expected, atol=1e-4)
    np.testing.assert_allclose(cosines(start.embed(x)), expected, atol=1e-4)
    # As long as before, so that learning rates mean the same.
    unit = unit_length(torch.from_numpy(x[rows]))
    assert float(layer(unit).detach().norm()) == pytest.approx(np.sqrt(2 * len(rows)), rel=1e-3)


def test_whitening_finds_classes_that_it_has_not_seen():
    data = mixture(nuisance=2.0)
    train, test = data.train, data.test
    start = make_start(train.inputs, 64).whitened(train.inputs, train.labels, np.arange(240))
    before, after = (np.nanmean(judged(rows, test.labels)[:, 1]) for rows in (test.inputs, start.embed(test.inputs)))
    assert after > before + 0.3


def test_without_two_samples_of_a_class_nothing_is_whitened():
    x, start = mixture().train.inputs, make_start(mixture().train.inputs, 16)
    for labels, rows in ((np.arange(240), np.arange(240)), (np.zeros(240, int), np.arange(0))):
        assert torch.equal(start.whitened(x, labels, rows).axes, start.axes)
    copies = np.repeat(x[::2], 2, axis=0)
    assert torch.equal(start.whitened(copies, np.arange(240) // 2, np.arange(240)).axes, start.axes)


@pytest.mark.parametrize(("classes", "size"), [(4000, 3), (40, 300)])
def test_of_many_samples_some_of_each_class_or_two_of_some_classes_are_whitened_by(classes, size, monkeypatch):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), size))
    monkeypatch.setattr("robustdml.networks.start.MOST_SAMPLES", 1000)
    sizes = np.bincount(labels[_of_each_class(labels, np.arange(len(labels)))])
    assert sizes.sum() == 1000 and set(sizes[sizes > 0]) == {max(1000 // classes, 2)}


def test_the_start_is_as_wide_as_it_must_be_not_to_lose():
    """Classes that differ in the strongest axes, and classes that differ in weak ones alone."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    strong = np.zeros((200, 150), np.float32)
    strong[:, :10] = random.normal(size=(20, 10))[labels] + 0.3 * random.normal(size=(200, 10))
    assert choose_start(strong, labels, 0).width == 64
    weak = random.normal(size=(200, 150)).astype(np.float32)
    weak[:, 90:] = 0.7 * random.normal(size=(20, 60))[labels]
    start = choose_start(weak, labels, 0)
    assert start.width == 150 and list(start.measured) == [0, 64, 128]
    assert start.measured[64]["mean_average_precision_at_r"] < start.measured[0]["mean_average_precision_at_r"] - 0.03
    assert not choose_start(strong, labels // 2, 0).measured  # too few classes to measure on


def test_wrong_labels_do_not_hide_what_a_narrow_start_loses(monkeypatch):
    """Of a third of wrong labels every width finds little, so that no width seems to lose much."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 24)
    x = random.normal(size=(len(labels), 200)).astype(np.float32)
    x[:, 100:] = 0.8 * random.normal(size=(24, 100))[labels] + 0.5 * random.normal(size=(len(labels), 100))
    data = replace(mixture(), train=Split(x, labels, tuple(map(str, range(24)))))
    config = TrainingConfig(method="contrastive", start="principal", seed=0)

    def width(data):
        return begun(config, data).embedding_size

    noisy = with_wrong_labels(data, "symmetric:0.4", 0)
    assert choose_start(x, noisy.train.labels, 0).width == 64 and width(noisy) == width(data) == 200
    # Where the audit would take long and no filter asks for it, labels count as given.
    monkeypatch.setattr("robustdml.run.beliefs.MOST_JUDGED", 10)
    assert width(noisy) == 64
