"""The embedding layer that starts from the features' own axes, and its average with what it has learnt."""

import numpy as np
import pytest
import torch
from torch import nn

from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split
from robustdml.filters.options import FilterOptions
from robustdml.networks.models import PrincipalAxes
from robustdml.networks.preparation import prepare
from robustdml.noise import with_wrong_labels
from robustdml.progress import Recorder, silent
from robustdml.run import trials
from robustdml.run.run import Run
from robustdml.train import train

CPU = torch.device("cpu")


def cosines(x):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit @ unit.T


def mixture(classes=12, size=20, features=24, nuisance=3.0, seed=0):
    """Classes that differ in a third of the directions, under a nuisance in others."""
    random = np.random.default_rng(seed)
    centres = np.zeros((2 * classes, features))
    centres[:, : features // 3] = random.normal(size=(2 * classes, features // 3))
    labels = np.repeat(np.arange(2 * classes), size)
    x = centres[labels] + 0.3 * random.normal(size=(len(labels), features))
    x[:, -2:] += nuisance * random.normal(size=(len(labels), 2))
    names = tuple(f"class {c}" for c in range(classes))
    first = labels < classes
    train_split = Split(x[first].astype(np.float32), labels[first], names)
    return RetrievalData("mixture", train_split, Split(x[~first].astype(np.float32), labels[~first] - classes, names))


def test_a_layer_that_is_wide_enough_starts_with_the_features_own_cosines():
    x = mixture().train.inputs
    layer = nn.Linear(24, 64)
    PrincipalAxes.of(x).fill(layer)
    np.testing.assert_allclose(cosines(layer(torch.from_numpy(x)).detach().numpy()), cosines(x), atol=1e-5)
    # As long as He's rows, so that learning rates mean the same.
    assert float(layer.weight.detach().square().sum()) == pytest.approx(2 * 24, rel=1e-4)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_the_axes_do_not_depend_on_the_length_of_rows(scale):
    x = mixture().train.inputs
    x[3] = 0
    axes, scaled = PrincipalAxes.of(x), PrincipalAxes.of((x * scale).astype(np.float32))
    np.testing.assert_allclose(scaled.strengths, axes.strengths, rtol=1e-4, atol=1e-3)
    assert axes.strengths.sum() == pytest.approx(len(x) - 1, rel=1e-5)


def test_a_narrow_layer_starts_with_the_strongest_axes():
    random = np.random.default_rng(0)
    strong = random.normal(size=(200, 4)) @ random.normal(size=(4, 30))
    x = (strong + 0.01 * random.normal(size=(200, 30))).astype(np.float32)
    layer = nn.Linear(30, 4)
    axes = PrincipalAxes.of(x)
    axes.fill(layer)
    np.testing.assert_allclose(cosines(layer(torch.from_numpy(x)).detach().numpy()), cosines(x), atol=5e-3)
    assert np.all(np.diff(axes.strengths) <= 1e-9)


def test_the_width_keeps_the_squared_similarities():
    random = np.random.default_rng(0)
    few = (random.normal(size=(400, 5)) @ random.normal(size=(5, 300))).astype(np.float32)
    flat = random.normal(size=(2000, 300)).astype(np.float32)
    assert PrincipalAxes.of(few).width() == 64
    wide = PrincipalAxes.of(flat)
    assert wide.width() == 320
    kept = np.sum(wide.strengths[: wide.width()] ** 2) / np.sum(wide.strengths**2)
    assert kept >= 0.99


def test_a_run_that_trains_nothing_is_the_untouched_features():
    data = mixture()
    result = train(TrainingConfig(averaging=0.0, epochs=1, batch_size=64), data, device="cpu")
    untouched = result.summary["untouched"]
    assert result.summary["precision_at_1"] == pytest.approx(untouched["precision_at_1"], abs=1e-9)
    assert result.summary["averaging"] == 0


def test_the_average_lies_between_start_and_end_and_is_what_is_kept(tmp_path):
    data = mixture()
    result = train(TrainingConfig(averaging=0.25, epochs=2, batch_size=64), data, out=tmp_path, device="cpu")
    run = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["state"]
    expected = 0.75 * run["start"]["weight"] + 0.25 * run["embedder"]["head.weight"]
    torch.testing.assert_close(result.embedder.head.weight.detach(), expected)
    used = torch.nn.functional.normalize(result.embedder(torch.from_numpy(data.test.inputs)))
    torch.testing.assert_close(result.model(torch.from_numpy(data.test.inputs)), used)


def test_a_trial_averages_away_what_random_labels_teach():
    data = mixture(classes=16, size=4)
    random = np.random.default_rng(1)
    noise = Split(data.train.inputs, random.permutation(data.train.labels), data.train.class_names)
    config = TrainingConfig(epochs=15, batch_size=64)

    def share(split):
        run = Run(config, prepare(config, RetrievalData("mixture", split, data.test), CPU), CPU)
        trials.choose(run, silent)
        return run.averaging

    learnable = share(data.train)
    assert learnable == trials.largest_averaging(16)
    assert share(noise) < learnable


def test_a_gain_is_more_than_chance():
    assert trials.is_gain(np.array([0.1, 0.2, 0.1, 0.15, 0.1, 0.2, 0.1, 0.1]))
    assert not trials.is_gain(np.array([0.1, -0.1, 0.1, -0.05, 0.0, 0.02, -0.1, 0.1]))
    assert trials.is_gain(np.zeros(9))
    assert trials.is_gain(np.array([0.3, -0.2]))
    assert not trials.is_gain(np.array([0.1, -0.2]))


def test_too_few_classes_for_a_trial():
    data = mixture(classes=3)
    config = TrainingConfig(epochs=1, batch_size=32)
    run = Run(config, prepare(config, data, CPU), CPU)
    trials.choose(run, silent)
    assert run.averaging == trials.largest_averaging(3) == 3 / 8
    assert run.filter_options == config.filter_options


class Interrupted(Recorder):
    """Somebody presses Ctrl-C in the second epoch."""

    def start(self, history, epochs):
        self.epochs = len(history)

    def epoch(self, record):
        self.epochs += 1

    def step(self, step, steps, loss):
        if self.epochs == 1:
            raise KeyboardInterrupt


def test_resume_goes_on_with_what_was_chosen(tmp_path):
    data = with_wrong_labels(mixture(classes=40, size=8), "symmetric:0.4", seed=0)
    config = TrainingConfig(epochs=4, batch_size=64)
    whole = train(config, data, device="cpu")
    # A choice that is not what the settings say, or there would be nothing to remember.
    assert (whole.summary["filter"], whole.summary["averaging"]) == ("audit", 40 / 45)
    with pytest.raises(KeyboardInterrupt):
        train(config, data, out=tmp_path, device="cpu", recorders=[Interrupted()])
    resumed = train(config, data, out=tmp_path, resume=True, device="cpu")
    chosen = ("filter", "learning_rate", "averaging", "loss", "filter_kept", "precision_at_1")
    assert [whole.summary[name] for name in chosen] == [resumed.summary[name] for name in chosen]
    assert torch.equal(whole.embedder.head.weight, resumed.embedder.head.weight)


def test_a_trial_takes_the_filter_that_helps():
    """Small classes with two wrong labels of five; and right labels of the same, where none is needed."""
    clean, config = mixture(classes=40, size=8), TrainingConfig(epochs=4, batch_size=64)
    for noise, kind in (("symmetric:0.4", "audit"), ("none", "none")):
        data = with_wrong_labels(clean, noise, seed=0)
        run = Run(config, prepare(config, data, CPU), CPU)
        state = torch.get_rng_state()
        trials.choose(run, silent)
        assert run.filter_options.kind == kind
        assert torch.equal(torch.get_rng_state(), state)


def test_a_trial_has_classes_enough_and_samples_not_too_many():
    assert [trials.num_tried(np.array(sizes)) for sizes in ([5000] * 9, [40] * 300, [2] * 5000, [12] * 499)] == [
        9, 200, 1000, 499,
    ]  # fmt: skip
    assert trials.num_tried(np.full(1000, 12)) == 500


def test_an_average_is_chosen_where_there_is_a_start_to_go_back_to():
    assert TrainingConfig(backbone="untrained", finetune=True).layer_start == "random"
    assert not TrainingConfig(finetune=True).chooses_averaging
    assert TrainingConfig().chooses_averaging


def test_what_is_tried():
    kinds = [(way.filter_options.kind, way.network_learning_rate) for way in trials.ways_to_train(TrainingConfig())]
    rate = TrainingConfig().network_learning_rate
    assert kinds == [("none", rate), ("audit", rate), ("prism-vmf", rate), ("audit", rate / 10)]
    assert len(trials.ways_to_train(TrainingConfig(learning_rate=1e-3))) == 3
    for asked in (FilterOptions(), FilterOptions("audit"), FilterOptions("prism-average")):
        config = TrainingConfig(filter=asked)
        assert trials.ways_to_train(config) == [config]
