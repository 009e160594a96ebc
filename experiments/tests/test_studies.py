"""The studies of negatives that are left out, of contrastive losses where labels are wrong, and of two-byte proxies."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.bench import (
    bfloat16_proxies,
    contrastive_noise,
    drawn_kinds,
    few_classes,
    loss_study,
    many_identities,
    wrong_pairs,
)
from experiments.bench.identities import FAMILY, draw_identities
from experiments.commands.negatives import LABELS, relabelled, tables
from robustdml.data import RetrievalData, Split, load_data
from robustdml.retrieval import retrieval_metrics


def test_labels_of_each_kind():
    labels = np.repeat(np.arange(7), 12)
    train = Split(np.zeros((len(labels), 2), np.float32), labels, tuple("abcdefg"))
    data = RetrievalData("few", train, train)
    right, flipped, split, merged = (relabelled(data, kind, 0).train for kind in LABELS)
    assert right is train
    assert (flipped.labels != train.labels).mean() == pytest.approx(0.4, abs=0.03)
    assert split.num_classes == 14
    assert (split.labels // 2 == train.labels).all()
    assert set(split.labels % 2) == {0, 1}
    assert split.class_names[:2] == ("a 1", "a 2")
    assert merged.num_classes == 4
    together = {frozenset(train.labels[merged.labels == pair].tolist()) for pair in range(4)}
    assert sorted(map(len, together)) == [1, 2, 2, 2]
    for pair, name in enumerate(merged.class_names):
        assert name == " and ".join(train.class_names[k] for k in sorted(set(train.labels[merged.labels == pair])))


def test_tables_of_means_over_the_seeds():
    cell = {"labels": LABELS[0], "share": 1.0, "limit": None, "MAP@R": 0.2}
    runs = [cell | {"seed": 0, "Recall@1": 0.5}, cell | {"seed": 1, "Recall@1": 0.7}]
    runs.append(cell | {"seed": 0, "labels": LABELS[1], "limit": 0.4, "share": 0.1, "Recall@1": 0.1})
    found = tables(runs)
    assert found["noises"] == [LABELS[0], LABELS[1]]
    assert found["Recall@1"] == {
        "all negatives": [pytest.approx(0.6), None],
        "10% of the negatives, without cosines above 0.4": [None, 0.1],
    }


def test_each_contrastive_loss_learns(monkeypatch):
    monkeypatch.setattr(contrastive_noise, "SAMPLES", 16)
    data = load_data("digits")
    data = replace(data, test=data.train)  # of ten classes nothing is learnt for others
    untrained = contrastive_noise.score(data, "SupCon", "none", 0, steps=0)
    right = {loss: contrastive_noise.score(data, loss, "none", 0, steps=60) for loss in contrastive_noise.LOSSES}
    assert min(right.values()) > untrained
    assert right[contrastive_noise.FILTERED] == right["SupCon"]  # the filter has not begun, and nothing is left out


def test_each_loss_of_pairs_learns():
    data = load_data("digits")
    data = replace(data, test=data.train)
    untrained = wrong_pairs.score(data, "InfoNCE", 0.0, 0, steps=0)
    assert all(wrong_pairs.score(data, loss, 0.0, 0, steps=60) > untrained for loss in wrong_pairs.LOSSES)


def test_a_study_keeps_the_data_sets_that_are_not_named(tmp_path, monkeypatch):
    monkeypatch.setattr(loss_study, "RESULTS", tmp_path)
    for name, gain in (("digits", 0.1), ("vowel", 0.3), ("digits", 0.2)):
        monkeypatch.setattr("sys.argv", ["study", name])
        given = ["one", "two"], {"right": 0.0, "wrong": 0.5}
        loss_study.write_study(
            "found", "a command", None, *given, lambda data, loss, noise, seed, gain=gain: gain + noise + seed, 2
        )
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["command"] == "a command" and found["seeds"] == 2
    means = {name: [mean for mean, _ in rows["MAP@R"]["two"]] for name, rows in found["results"].items()}
    assert means == {"digits": pytest.approx([0.7, 1.2]), "vowel": pytest.approx([0.8, 1.3])}


def test_a_share_of_the_pairs_does_not_belong_together():
    labels = torch.arange(50).repeat_interleave(20)
    samples, partners = wrong_pairs.pair(labels, 0.0)
    assert samples.sort().values.tolist() == partners.sort().values.tolist() == list(range(1000))
    assert (samples != partners).all() and (labels[samples] == labels[partners]).all()
    torch.manual_seed(0)
    samples, partners = wrong_pairs.pair(labels, 0.5)
    assert 0.45 < (labels[samples] != labels[partners]).double().mean() < 0.55


def test_the_contrastive_loss_draws_near_positives_nearer():
    near = torch.tensor([[1.0, 0.0], [0.6, 0.8]])  # a distance of 0.9; margins of cosines would leave it alone
    assert contrastive_noise.LOSSES["contrastive"]()(near, torch.zeros(2, dtype=torch.int64)) > 0


@pytest.mark.filterwarnings("ignore:.*rounds to the nearest")
def test_proxies_of_each_type_are_trained(monkeypatch):
    monkeypatch.setattr(bfloat16_proxies, "SEEDS", 2)
    types = bfloat16_proxies.study("digits", ("arcface",), epochs=1)["ArcFace"]
    assert list(types) == list(bfloat16_proxies.PROXIES)
    assert types["float32"]["difference"] == [0.0, 0.0]
    assert all(0.9 < values["Recall@1"][0] <= 1 for values in types.values())


def test_halves_of_few_classes_are_files_to_train_on(tmp_path):
    few_classes.write("led7digit-table", few_classes.sets(10)["led7digit-table"](), 10, tmp_path)
    data = load_data(str(tmp_path / "led7digit-table-10.npz"))
    assert (data.train.num_classes, data.test.num_classes) == (5, 5)
    assert abs(data.train.inputs.mean(0)).max() < 1e-5 < abs(data.test.inputs.mean(0)).max()


@pytest.mark.parametrize("draw", drawn_kinds.KINDS)
def test_features_of_drawn_kinds_tell_their_classes(draw):
    features, labels = draw(np.random.default_rng(0))
    found = retrieval_metrics(features.astype(np.float32), labels)
    assert np.bincount(labels).min() > 1 and 0.3 < found["precision_at_1"] <= 1


@pytest.mark.parametrize("noise", ["right", "40 % wrong", "40 % wrong, within families"])
def test_identities_are_the_same_each_time_and_wrong_as_asked(noise):
    kind, rate = many_identities.NOISES[noise]
    samples = draw_identities(3000, 1, noise=kind, rate=rate)
    again = draw_identities(3000, 1, noise=kind, rate=rate)
    assert torch.equal(samples.labels, again.labels)
    counts = torch.bincount(samples.identities)
    assert counts.min() == 2 and counts.max() == 6
    wrong = samples.labels != samples.identities
    assert float(wrong.float().mean()) == pytest.approx(rate, abs=0.02)
    assert bool((samples.labels // FAMILY == samples.identities // FAMILY).all()) == (kind != "symmetric")
    rows = torch.tensor([7, 3])
    torch.testing.assert_close(samples.features(rows), again.features(torch.arange(10))[rows])
    # Of one identity they are nearer than of two; held-out identities are others.
    held_out = draw_identities(3000, 1, held_out=True)
    found = retrieval_metrics(held_out.features(torch.arange(4000)), held_out.labels[:4000].numpy())
    assert 0.3 < found["precision_at_1"] < 0.8
    assert not torch.equal(held_out.features(rows), samples.features(rows))


def test_each_way_to_train_on_many_identities_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(many_identities, "HELD_OUT", 160)
    monkeypatch.setattr(many_identities, "FIRST", 1024)
    monkeypatch.setattr(many_identities, "RESULTS", tmp_path)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    lines = tmp_path / "lines.jsonl"
    arguments = ["study", "200", "--noise", "40 % wrong", "--seeds", "1", "--steps", "2", "--lines", str(lines)]
    monkeypatch.setattr("sys.argv", arguments)
    many_identities.main()
    runs = json.loads((tmp_path / "many-identities.json").read_text())["runs"]
    assert [run["way"] for run in runs] == ["untouched features", *many_identities.WAYS]
    assert all(0 <= run["TAR at FAR 1e-4"] <= 1 and 0 < run["Recall@1"] <= 1 for run in runs)
    many_identities.main()  # nothing is missing
    assert len(lines.read_text().splitlines()) == len(runs)
