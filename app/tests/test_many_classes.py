"""The method many-classes: pairs, a filter, and pairs again or proxies that begin as embeddings."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from app.tests.conftest import begun, check_resume, mixture
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.methods.classes import EmbeddingSoftmaxOptions
from robustdml.noise import with_wrong_labels
from robustdml.options import OptionSet
from robustdml.progress import silent
from robustdml.run import stages
from robustdml.train import train

CONFIG = TrainingConfig(method="many-classes", epochs=4, batch_size=64)
PAIRS, PROXIES = "supcon", "softmax-from-embeddings"


@pytest.fixture(scope="module")
def few_each():
    """Classes of 4 samples, 30 % of whose labels are wrong."""
    return with_wrong_labels(mixture(classes=60, size=4), "symmetric:0.3", seed=0)


def choosing(monkeypatch, loss):
    """Let the trials favour a loss."""
    found = stages._measured
    monkeypatch.setattr(stages, "_measured", lambda run: dict.fromkeys(found(run), run.loss_name == loss))


@pytest.mark.parametrize("loss", [PAIRS, PROXIES])
def test_a_resumed_run_in_two_stages_equals_an_unbroken_one(few_each, tmp_path, monkeypatch, loss):
    choosing(monkeypatch, loss)
    whole, _ = check_resume(CONFIG, few_each, tmp_path / "run", stop=2)
    assert whole.summary["chosen"]["loss"] == loss and f"Chosen halfway: {loss}." in whole.summary["chosen"]["advice"]
    # The second half draws from what is kept, and that is right more often than the whole.
    kept = whole.scores["kept"] == 1
    assert 0.4 < kept.mean() < 0.95 and whole.changed[kept].mean() < 0.7 * whole.changed.mean()


def test_it_judges_between_the_stages_and_leaves_classes_out_of_the_first(few_each):
    run = begun(CONFIG, few_each)
    run.fit_inputs(silent)
    aside = set(run.labels[run.aside])
    assert len(aside) == 6 and not aside & set(run.labels[run.drawn]) and not run.filter.verdict
    for _ in range(2):
        assert not stages.is_between_stages(run)
        run.take_steps(silent, ())
        run.end_epoch({})
    assert stages.is_between_stages(run)
    before = [parameter.clone() for parameter in run.embedder.parameters()]
    stages.choose_second_stage(run, silent)
    assert all(map(torch.equal, before, run.embedder.parameters()))  # The trials leave no trace
    trials = run.chosen["trials"]
    assert trials[PROXIES]["steps"] == 8 and trials[PAIRS]["steps"] <= 8
    assert trials[PAIRS]["seconds"] >= trials[PROXIES]["seconds"] or trials[PAIRS]["steps"] == 8
    assert aside & set(run.labels[run.drawn]) and not stages.is_between_stages(run)


def test_proxies_begin_as_embeddings_of_what_is_kept(few_each, monkeypatch):
    choosing(monkeypatch, PROXIES)
    run = begun(replace(CONFIG, epochs=2), few_each)
    run.fit_inputs(silent)
    run.take_steps(silent, ())
    run.end_epoch({})
    stages.choose_second_stage(run, silent)
    P, X = run.loss.W.detach().T, torch.nn.functional.normalize(run.embed_training_split()[run.drawn])
    labels = run.labels[run.drawn]
    means = torch.stack([X[labels == c].mean(0) for c in np.unique(labels)])
    torch.testing.assert_close(P.norm(dim=1)[np.unique(labels)], torch.ones(len(means)))
    cosines = torch.nn.functional.cosine_similarity(P[np.unique(labels)], means)
    assert cosines.min() > 0.8 and cosines.mean() > 0.99  # the mean of a few, which is taken one by one


def test_a_run_that_is_broken_off_in_a_trial_is_as_before(few_each, monkeypatch):
    run = begun(replace(CONFIG, epochs=2), few_each)
    run.fit_inputs(silent)
    run.take_steps(silent, ())
    run.end_epoch({})
    before = run.state()["embedder"]["head.weight"].clone()

    def broken(run):
        raise SystemExit

    monkeypatch.setattr(stages, "_measured", broken)
    with pytest.raises(SystemExit):
        stages.choose_second_stage(run, silent)
    assert run.loss_name == PAIRS and run.chosen is None and run.epoch == 1 and not run.under_way.steps
    assert torch.equal(before, run.embedder.head.weight)


def test_without_a_filter_all_is_kept_and_proxies_are_drawn(few_each, monkeypatch):
    choosing(monkeypatch, PROXIES)
    options = OptionSet(EmbeddingSoftmaxOptions(drawn=15))
    result = train(replace(CONFIG, epochs=2, filter=FilterOptions(), options=options), few_each, device="cpu")
    assert "kept" not in result.scores and np.isfinite(result.history[-1]["loss"])
    assert METHODS[PROXIES].make_loss(options, 60, 8).negative_share == 0.25


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 1}, "epochs=1: method many-classes has two stages and needs 2 or more"),
        ({"method": "mcl", "filter": FilterOptions("own-class")}, "filter own-class judges labels between two stages"),
        ({"noise_rate": 0.3}, "noise_rate=0.3 has no effect on filter own-class, which estimates it"),
    ],
)
def test_settings_that_do_not_fit_two_stages(settings, message):
    with pytest.raises(UsageError, match=message):
        replace(CONFIG, **settings)
