"""Trials of `robust` choose a learning rate, a filter, and the average of the layer with its start."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from app.tests.conftest import CPU, Ends, begun, check_resume, mixture
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split, take_classes
from robustdml.errors import UsageError
from robustdml.filters.options import FilterOptions
from robustdml.networks.preparation import prepare
from robustdml.noise import with_wrong_labels
from robustdml.progress import silent
from robustdml.run import contestants, held_out, trials
from robustdml.run.checkpoint import start_in
from robustdml.run.choice import Setting, best_setting
from robustdml.run.evidence import Tally, rows_of
from robustdml.run.held_out import leave_out_by_group
from robustdml.run.run import Run
from robustdml.train import train


def test_the_average_lies_between_start_and_end_and_is_what_is_kept(tmp_path):
    data = mixture()
    result = train(TrainingConfig(averaging=0.25, epochs=2, batch_size=64), data, out=tmp_path, device="cpu")
    run = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["state"]
    expected = 0.75 * run["start"]["weight"] + 0.25 * run["embedder"]["head.weight"]
    torch.testing.assert_close(result.embedder.head.weight.detach(), expected)
    used = torch.nn.functional.normalize(result.embedder(torch.from_numpy(data.test.inputs)))
    torch.testing.assert_close(result.model(torch.from_numpy(data.test.inputs)), used)


def tried(config, data):
    run = begun(config, data)
    trials.choose(run, silent)
    return run


def test_random_labels_teach_nothing_and_the_features_are_kept():
    data = mixture(classes=16, size=4)
    random = np.random.default_rng(2)
    noise = Split(data.train.inputs, random.permutation(data.train.labels), data.train.class_names)
    config = TrainingConfig(epochs=6, batch_size=64)
    assert not tried(config, data).keeps_features
    run = tried(config, RetrievalData("mixture", noise, data.test))
    assert run.keeps_features and run.averaged().head(torch.ones(2)).tolist() == [1, 1]
    told = run.chosen["advice"]
    assert not any(row[0].startswith("→") for row in rows_of(run.chosen))
    assert told.startswith("Kept the features as they are: nothing gained more than chance") and "--epochs 24" in told
    # Who asks for a size gets it.
    asked = tried(replace(config, embedding_size=16), RetrievalData("mixture", noise, data.test))
    assert not asked.keeps_features and "That may be chance; without --embedding-size" in asked.chosen["advice"]


def tally(differences, sizes=1, believed=1.0, chance=0.03):
    """Of as many classes as there are differences, of Recall@1 and MAP@R alike; times `believed` where believed."""
    labels = np.repeat(np.arange(len(differences)), sizes)
    found = Tally(len(differences), chance)
    gains = np.repeat(np.array(differences), sizes)[:, None] * np.ones(2)
    found.add(labels, gains, believed * gains)
    return found


def test_a_gain_is_more_than_chance():
    assert tally([0.1, 0.2, 0.1, 0.15, 0.1, 0.2, 0.1, 0.1]).supported
    assert not tally([0.1, -0.1, 0.1, -0.05, 0.0, 0.02, -0.1, 0.1]).supported
    assert not tally(np.zeros(9)).supported
    assert not tally([0.3]).supported
    # Labels that the audit keeps have to gain as well.
    assert not tally([0.1, 0.2, 0.1, 0.15, 0.1, 0.2, 0.1, 0.1], believed=-0.1).supported
    # Two classes have to agree, and of unequal ones a large one decides nothing alone.
    assert not tally([0.3, 0.1]).supported and tally([0.3, 0.299]).supported
    assert not tally([0.3, 0.2, -0.1, -0.1, -0.1], [500, 2, 2, 2, 2]).supported
    # Where nearly all classes stay at nothing found, three lucky ones have a small standard error.
    assert tally([0.1] * 30 + [0.0] * 70).supported and not tally([0.1] * 9 + [0.0] * 91).supported
    lost = tally([0.1] * 9)
    lost.add(np.arange(9), np.array([[-0.2, 0.1]] * 9), np.zeros((0, 2)))
    assert lost.mean == pytest.approx([-0.05, 0.1]) and not lost.supported and lost.splits == 2


def test_of_few_classes_trials_need_more_evidence_and_the_untrained_start_on_groups_less():
    few, many = (
        trials.Trials(Run(TrainingConfig(), prepare(TrainingConfig(), mixture(count), CPU), CPU), silent)
        for count in (6, 30)
    )
    features, labels = few.run.prepared.data.train.inputs, few.run.labels
    groups = leave_out_by_group(features, labels, np.ones(len(labels), bool), 24, seed=0)
    (of_few,) = {one.chance for one in few.tallies.values()}
    (of_many,) = {one.chance for one in many.tallies.values()}
    doubtful, weak = [0.05, 0.1, 0.02, 0.12, 0.01], [0.05, 0.12, 0.0, 0.12, 0.01]
    assert tally(doubtful, chance=of_many).supported and not tally(doubtful, chance=of_few).supported
    assert tally(weak, chance=groups.chance).supported and not tally(weak, chance=of_many).supported


def test_samples_of_held_out_classes_do_not_shape_thestart_in_a_trial():
    """Wrong labels bring them into the part that it trains on, and its layer would keep what it should lose."""
    random = np.random.default_rng(1500)
    labels = np.repeat(np.arange(120), 12)
    rates = np.exp(0.9 * random.normal(size=(120, 100)))[labels] * random.gamma(5, 0.2, size=(len(labels), 1))
    counts = random.poisson(1.2 * rates).astype(np.float32)
    first = np.sort(random.permutation(120)[:60])
    whole = Split(counts, labels, tuple(map(str, range(120))))
    others = np.setdiff1d(np.arange(120), first)
    data = RetrievalData("counts", take_classes(whole, first), take_classes(whole, others))
    runs = [tried(TrainingConfig(seed=seed), with_wrong_labels(data, "symmetric:0.3", seed)) for seed in range(3)]
    narrow = [run for run in runs if run.embedding_size == 64]
    assert narrow and all(run.keeps_features for run in narrow)


SETTINGS = [
    Setting("contrastive", FilterOptions(), factor, averaging)
    for factor, averaging in [*product((1, contestants.FASTER), trials.TRIED), (1, 0.0)]
]


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ((0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.099), (1, 0.5)),
        ((0.08, 0.1, 0.101, 0.1, 0.08, 0, 0), (1, 0.75)),
        ((0, 0, 0.1, 0.09, 0, 0, 0), (1, 1.0)),
        ((0.05, 0.06, 0.07, 0.1, 0.12, 0.125, 0), (3, 0.75)),
        ((0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.101), (1, 0.0)),
    ],
)
def test_of_what_gains_nearly_alike_the_one_that_moves_least_is_taken(gains, expected):
    best, supported = best_setting(dict(zip(SETTINGS, (tally([gain] * 9) for gain in gains), strict=True)))
    assert supported and (best.factor, best.averaging) == expected


def test_what_plainly_lost_on_one_split_is_not_tried_on_the_next():
    config = TrainingConfig(epochs=1, batch_size=64)
    run = begun(config, mixture(30, 8))
    found = trials.Trials(run, silent)
    found.tallies |= {key: tally([-0.1] * 30) for key in found.tallies if key[2] > 1}
    found.run_split(*held_out.splits_of(run.labels, seed=0)[0])
    assert {(factor, one.splits) for (*_, factor, _), one in found.tallies.items()} == {(1, 1), (contestants.FASTER, 1)}
    assert all(one.counts.sum() == 30 for (*_, factor, _), one in found.tallies.items() if factor > 1)


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (0.1, 0.11, "proxy-anchor"),
        (0.1, 0.1, "contrastive"),
        (0.1, None, "contrastive"),
        (-0.1, -0.2, "contrastive"),
        (-0.1, None, "contrastive"),
    ],
)
def test_of_two_losses_the_one_that_gains_more_is_taken(own, other, expected):
    """However far it moves the layer: what that means differs between losses."""
    gains = {"contrastive": own, "proxy-anchor": other}
    measured = {
        setting._replace(loss=loss): Tally(9) if gain is None else tally([gain] * 9)
        for loss, gain in gains.items()
        for setting in SETTINGS[:3]
    }
    best, supported = best_setting(measured)
    assert best.loss == expected and supported == (own > 0)


@pytest.mark.parametrize(("gain", "doubt"), [(-0.01, False), (0.01, True), (0.1, False)])
def test_a_second_loss_is_tried_where_the_first_leaves_doubt(gain, doubt, monkeypatch):
    run = begun(TrainingConfig(epochs=1, batch_size=64), mixture(60, 4))
    found = trials.Trials(run, silent)
    begun_with = found.tallies
    found.tallies = {key: tally(gain + 0.04 * np.sin(np.arange(60.0))) for key in begun_with}
    assert found.is_in_doubt == doubt
    found.tallies = begun_with
    monkeypatch.setattr(trials.Trials, "is_in_doubt", doubt)
    found.run_split(*held_out.splits_of(run.labels, seed=0)[0])
    tried_losses = {key[0] for key, one in found.tallies.items() if one.splits}
    assert tried_losses == ({"contrastive", "proxy-anchor"} if doubt else {"contrastive"})


def test_of_large_or_few_classes_one_loss_is_tried():
    for data, losses in (
        (mixture(30, 7), ["contrastive", "proxy-anchor"]),
        (mixture(30, 8), ["contrastive"]),
        (mixture(19, 7), ["contrastive"]),
    ):
        assert list(trials.Trials(begun(TrainingConfig(), data), silent).rates) == losses
    for asked, ratio in ((None, 1 / 3), (1e-3, 1)):
        rates = trials.Trials(begun(TrainingConfig(learning_rate=asked), mixture(30, 7)), silent).rates
        assert rates["proxy-anchor"] / rates["contrastive"] == pytest.approx(ratio)


def test_a_run_with_the_second_loss_goes_on_with_it_and_says_so(tmp_path, monkeypatch):
    def best(tallies):
        return next(setting for setting in tallies if setting.loss == "proxy-anchor"), True

    monkeypatch.setattr(trials, "best_setting", best)
    data, config = mixture(40, 4), TrainingConfig(epochs=4, batch_size=64)
    whole, resumed = check_resume(config, data, tmp_path, stop=1)
    for result in (whole, resumed):
        assert result.summary["chosen"]["loss"] == "proxy-anchor" and result.summary["learning_rate"] < 3e-3
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["state"]
    assert state["loss"]["proxies"].shape[0] == 40


@pytest.mark.parametrize(("classes", "count", "times"), [(6, 4, {1, 2}), (30, 2, {0, 1})])
def test_few_classes_are_held_out_in_more_splits(classes, count, times):
    labels = np.repeat(np.arange(classes), 3)
    splits = held_out.splits_of(labels, seed=0)
    assert len(splits) == count
    held = np.zeros(classes, int)
    for kept, tested in splits:
        assert not set(labels[kept]) & set(labels[tested]) and len(kept) + len(tested) == len(labels)
        held[np.unique(labels[tested])] += 1
    assert set(held) == times


def test_of_few_classes_whitening_is_tried_class_by_class_where_trials_support_nothing(monkeypatch):
    data = mixture(classes=6, nuisance=2.0)
    config = TrainingConfig(epochs=1, batch_size=64)
    assert tried(config, data).averaging > 0
    monkeypatch.setattr(trials, "splits_of", lambda labels, seed: [])
    run = tried(config, data)
    (best,) = run.chosen["contestants"]
    assert (run.averaging, run.keeps_features) == (0, False) and best["supported"]
    assert (best["classes"], best["splits"]) == (6, 10)  # five groups, two halves
    assert rows_of(run.chosen)[0][:4] == ["→ untrained", "–", "–", "0.00"]
    assert run.chosen["advice"].startswith("Chosen: features whitened within classes, without training")
    # Not of many classes, not of other starts, and not where it does not help.
    flat = Split(np.random.default_rng(0).normal(size=(120, 24)).astype(np.float32), data.train.labels, ("",) * 6)
    for kept in (mixture(24, 8), RetrievalData("flat", flat, data.test)):
        assert tried(config, kept).keeps_features
    assert tried(replace(config, start="principal"), data).keeps_features


def test_samples_that_whitening_was_fitted_to_do_not_make_others_look_better():
    """Of as many features as samples, whitening moves the samples that it has seen away from their neighbours."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(15), 40)
    x = 0.15 * random.normal(size=(15, 600))[labels] + random.normal(size=(600, 600))
    found = leave_out_by_group(x.astype(np.float32), labels, np.ones(600, bool), 600, 0)
    assert not found.supported and found.mean[1] < 0.01


def test_too_few_classes_for_a_trial():
    run = tried(TrainingConfig(epochs=1, batch_size=32), mixture(classes=3))
    assert run.keeps_features and "trials need 4 classes" in run.chosen["advice"]
    asked = tried(TrainingConfig(epochs=1, batch_size=32, embedding_size=8), mixture(classes=3))
    assert (asked.keeps_features, asked.averaging) == (False, 0.5)


def test_resume_goes_on_with_what_was_chosen(tmp_path):
    data = with_wrong_labels(mixture(classes=40, size=8), "symmetric:0.4", seed=0)
    config = TrainingConfig(epochs=4, batch_size=64)
    whole, resumed = check_resume(config, data, tmp_path, stop=1)
    # A choice that is not what the settings say, or there would be nothing to remember.
    assert whole.summary["filter"] == "audit" and whole.summary["averaging"] in trials.TRIED
    chosen = ("filter", "averaging", "learning_rate", "chosen", "loss", "precision_at_1")
    assert [whole.summary[name] for name in chosen] == [resumed.summary[name] for name in chosen]


def test_a_resumed_run_does_not_judge_labels_again(tmp_path, monkeypatch):
    """Of half a million samples that takes minutes, and is told."""
    config, data = TrainingConfig(epochs=2, batch_size=64), mixture(classes=20, size=8)
    told = []
    common = {"out": tmp_path, "device": "cpu", "on_progress": lambda what, *_: told.append(what)}
    with pytest.raises(KeyboardInterrupt):
        train(config, data, **common, recorders=[Ends(after=1)])
    assert "judging labels" in told
    monkeypatch.delattr("robustdml.run.beliefs.label_quality")
    told.clear()
    assert len(train(config, data, **common, resume=True).history) == 2 and "judging labels" not in told
    damaged = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert start_in({"state": {**damaged["state"], "start": []}}, config, prepare(config, data, CPU)) is None
    narrower = replace(data, train=replace(data.train, inputs=data.train.inputs[:, :20]))
    monkeypatch.undo()
    with pytest.raises(UsageError, match="is of another run"):
        train(config, narrower, out=tmp_path, resume=True, device="cpu")


def test_few_steps_raise_the_learning_rate_and_trials_try_three_times_as_much(monkeypatch):
    data, rates = mixture(classes=40, size=8), set()  # 5 batches of 64 an epoch
    fit = Run.fit_inputs
    monkeypatch.setattr(Run, "fit_inputs", lambda run, report: rates.add(run.rates[0]) or fit(run, report))
    for epochs, asked, expected in ((1, None, (6, 18)), (16, None, (4.5, 13.5)), (24, None, (3, 9)), (61, None, (3,))):
        run = tried(TrainingConfig(epochs=epochs, batch_size=64, learning_rate=asked), data)
        assert sorted(rates) == pytest.approx([1e-3 * rate for rate in expected])
        (chosen,) = [one for one in run.chosen["contestants"] if one["chosen"]]
        assert run.rates[0] == pytest.approx(chosen["learning_rate"])
        raised = run.rates[0] > 3e-3 and not run.keeps_features and run.averaging > 0
        assert ("the default learning rate" in run.chosen["advice"]) == raised
        rates.clear()
    for asked, of in ((1e-3, data), (None, mixture(19, 8))):
        run = tried(TrainingConfig(epochs=1, learning_rate=asked), of)
        assert run.rates[0] == (asked or 3e-3) and rates == {run.rates[0]}
        rates.clear()
    assert begun(TrainingConfig(averaging=1.0), data).rates[0] == 3e-3
    short, longer = (tried(TrainingConfig(epochs=epochs, batch_size=64), data) for epochs in (1, 24))
    longer.load_state(short.state())
    assert longer.rates == short.rates  # What goes on for more epochs keeps its rates.


def test_a_trial_has_classes_enough_and_samples_not_too_many():
    given = ([5000] * 9, [40] * 300, [2] * 5000, [12] * 499, [12] * 1000)
    assert [held_out.num_tried(np.array(sizes)) for sizes in given] == [9, 200, 1000, 499, 500]


def test_the_start_goes_with_the_network():
    assert TrainingConfig().layer_start == "whitened" and TrainingConfig(finetune=True).layer_start == "principal"
    assert TrainingConfig(finetune=True, start="whitened").layer_start == "whitened"
    # Features of an untrained network have no axes worth starting from.
    assert TrainingConfig(backbone="untrained", finetune=True).layer_start == "random"
    assert TrainingConfig(method="contrastive").layer_start == "random"


def test_filters_are_tried_on_few_classes_unless_one_is_named():
    few, named = {"none", "audit"}, {None: "audit", "none": "none", "prism-vmf": "prism-vmf"}
    for kind, expected in named.items():
        asked = None if kind is None else FilterOptions(kind)
        for data, tried_kinds in ((mixture(size=6), few if kind is None else {kind}), (mixture(24, 4), {expected})):
            run = tried(TrainingConfig(epochs=1, filter=asked), data)
            assert {one["filter"] for one in run.chosen["contestants"]} == tried_kinds
            assert run.filter_options.kind == run.chosen["filter"] and run.chosen["filter"] in tried_kinds


def in_pairs(data):
    """Half of the classes have no label left: pairs of their samples, nearly copies, get that of another class."""
    random = np.random.default_rng(0)
    x, labels, half = data.train.inputs.copy(), data.train.labels.copy(), data.train.num_classes // 2
    x[1::2] = x[::2] + 0.01 * random.normal(size=x[::2].shape)
    labels[::2] = np.where(labels[::2] < half, random.integers(half, 2 * half, len(x) // 2), labels[::2])
    labels[1::2] = labels[::2]
    return RetrievalData("in pairs", Split(x, labels, data.train.class_names), data.test)


def test_prism_filters_where_the_audit_overlooks_much():
    data = mixture(40, 30)
    expected = {"prism-vmf": in_pairs(data), "audit": with_wrong_labels(data, "symmetric:0.3", seed=0)}
    for kind, wrong in expected.items():
        run = tried(TrainingConfig(epochs=1), wrong)
        assert {one["filter"] for one in run.chosen["contestants"]} == {kind} and run.filter_options.kind == kind
        overlooks = run.chosen["overlooked"] > contestants.MOST_OVERLOOKED
        assert not run.filter_options.on_trial and overlooks == (kind != "audit")
        assert ("of the labels that the audit keeps" in run.chosen["advice"]) == (kind != "audit")
    # Of few samples PRISM is not asked.
    assert tried(TrainingConfig(epochs=1), in_pairs(mixture(40, 20))).chosen["overlooked"] == 0
