"""Every run is held against the features as they were before it, and where training gains nothing it keeps them.

Data of awkward kinds end not below them.
"""

import base64
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from app.tests.conftest import CPU, metrics_of, run_command, save_features
from app.tests.test_robust import mixture
from robustdml import load_embedder
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split
from robustdml.errors import UsageError
from robustdml.evaluation import below_untouched, still_rising
from robustdml.networks.models import SmallCNN, apply_in_batches, unit_length
from robustdml.noise import with_wrong_labels
from robustdml.reports.run_report import render_run
from robustdml.retrieval import METRICS, retrieval_metrics
from robustdml.run import trials
from robustdml.run.sample_log import clean_auc
from robustdml.train import train
from robustdml.trained.embedder import read_model

FAST = TrainingConfig(method="proxy-anchor", epochs=1, batch_size=32, embedding_size=8)


def test_nothing_to_find_is_an_error():
    with pytest.raises(UsageError, match="at least 2 samples"):
        retrieval_metrics(np.eye(3, dtype=np.float32), np.arange(3))
    with pytest.raises(UsageError, match="NaN"):
        retrieval_metrics(np.full((4, 2), np.nan, dtype=np.float32), np.zeros(4, dtype=np.int64))


def test_clean_auc():
    changed = np.array([True, True, False, False])
    assert clean_auc("weight", np.array([0.1, 0.4, 0.3, 0.9], np.float32), changed) == pytest.approx(0.75)
    assert clean_auc("weight", np.ones(4, np.float32), np.zeros(4, bool)) is None
    assert clean_auc("weight", np.ones(4, np.float32), np.ones(4, bool)) is None


def test_they_are_the_metrics_of_the_features_as_given(clusters, tmp_path):
    expected = retrieval_metrics(clusters.test.inputs, clusters.test.labels)
    result = train(FAST, clusters, out=tmp_path, device="cpu")
    assert result.summary["untouched"] == expected and set(expected) == set(METRICS)
    stored = metrics_of(tmp_path)
    assert stored["untouched"] == expected
    assert stored["below_untouched"] == below_untouched(result.history[-1], expected)
    known = dict.fromkeys(METRICS, 0.25)
    assert train(FAST, clusters, device="cpu", untouched=known).summary["untouched"] == known


def test_a_run_that_is_evaluated_at_its_end_alone_ends_the_same(noisy):
    config = replace(FAST, epochs=3, method="robust", averaging=1.0)
    whole = train(config, noisy, device="cpu")
    at_end = train(config, noisy, device="cpu", evaluate_each_epoch=False)
    assert [set(METRICS) <= set(record) for record in whole.history] == [True] * 3
    assert [bool(set(METRICS) & set(record)) for record in at_end.history] == [False, False, True]
    assert {**whole.history[-1], "seconds": 0} == {**at_end.history[-1], "seconds": 0}


def test_of_a_network_that_trains_they_are_those_before_it_did_also_when_the_run_goes_on(tiny_images, tmp_path):
    config = replace(FAST, backbone="untrained", finetune=True, batch_size=20, seed=3)
    torch.manual_seed(3)
    before = SmallCNN(1)
    features = apply_in_batches(before, tiny_images.test.inputs, CPU)
    expected = retrieval_metrics(features, tiny_images.test.labels)
    first = train(config, tiny_images, out=tmp_path / "run", device="cpu")
    assert not torch.equal(first.embedder.backbone[0].weight, before[0].weight)
    again = train(replace(config, epochs=2), tiny_images, out=tmp_path / "run", resume=True, device="cpu")
    assert first.summary["untouched"] == again.summary["untouched"] == expected
    assert "untouched features of the untrained network" in render_run(again, tiny_images)


@pytest.mark.parametrize(
    ("recall", "precision", "told"),
    [
        (0.89, 0.49, []),  # one point below, and not more
        (0.889, 0.5, ["Recall@1 is 0.889, and 0.900"]),
        (0.95, 0.48, ["MAP@R is 0.480, and 0.500"]),
        (0.7, 0.3, ["Recall@1 is 0.700, and 0.900", "MAP@R is 0.300, and 0.500"]),
    ],
)
def test_more_than_a_point_below_is_told(recall, precision, told):
    metrics, untouched = (dict(zip(("precision_at_1", "mean_average_precision_at_r"), pair, strict=True))
                          for pair in ((recall, precision), (0.9, 0.5)))  # fmt: skip
    sentence = below_untouched(metrics, untouched)
    assert (sentence is None) == (not told)
    assert all(part in sentence for part in told)
    assert (sentence or "").count("@") == len(told)


def test_a_run_that_does_harm_says_so_in_terminal_metrics_and_report(clusters, tmp_path):
    """Two columns tell the test classes apart, and say nothing of the training labels."""
    angle = 2 * np.pi * clusters.test.labels / clusters.test.num_classes
    told = np.column_stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    nothing = np.random.default_rng(0).normal(size=(len(clusters.train), 2)).astype(np.float32)
    spoilt = RetrievalData("spoilt", replace(clusters.train, inputs=nothing), replace(clusters.test, inputs=told))
    source = save_features(spoilt, tmp_path / "spoilt.npz")
    command = ("train", "--data", source, "--method", "proxy-anchor", "--embedding-size", "1", "--epochs", "1")
    printed = " ".join(run_command(*command, "--device", "cpu", "--out", "harm").out.split())
    stored = metrics_of(tmp_path / "harm")
    assert stored["untouched"]["precision_at_1"] == 1 > stored["precision_at_1"] + 0.01
    assert stored["below_untouched"].startswith("Training did harm: Recall@1 is ")
    assert "The way out: use the features as they are" in stored["below_untouched"]
    assert stored["below_untouched"] in printed
    assert "untouched features" in printed and "1.000" in printed
    report = (tmp_path / "harm" / "report.html").read_text()
    assert stored["below_untouched"] in report and "<td>1.000</td>" in report
    (curve,) = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="Recall', report)
    assert "untouched features" in base64.b64decode(curve).decode()


def test_a_run_that_trains_nothing_is_the_untouched_features_and_says_nothing(tmp_path):
    source = save_features(mixture(), tmp_path / "mixture.npz")
    command = ("train", "--data", source, "--start", "principal", "--averaging", "0", "--epochs", "9")
    printed = run_command(*command, "--batch-size", "64", "--device", "cpu", "--out", "fine")
    stored = metrics_of(tmp_path / "fine")
    assert stored["below_untouched"] is None and stored["averaging"] == 0
    assert stored["epoch"] == 1, "epochs that nothing is used of"
    for name in ("precision_at_1", "mean_average_precision_at_r"):
        assert stored[name] == pytest.approx(stored["untouched"][name], abs=1e-4)
    report = (tmp_path / "fine" / "report.html").read_text()
    assert "did harm" not in printed.out + report and "1 epoch, " in report and "against the epoch" not in report


def test_a_curve_that_still_rises_is_told_with_the_command_that_goes_on(features, tmp_path):
    history = [{"mean_average_precision_at_r": value} for value in (0.1, 0.2, 0.3, 0.4, 0.4, 0.405)]
    assert still_rising(history, tmp_path) is None and still_rising(history[:1], tmp_path) is None
    told = "from 0.200 to 0.300 in the last third of the epochs. To go on: epochs 6"
    assert still_rising(history[:3], None).endswith(told)
    assert still_rising([{"loss": 1.0}, *history[:1]], None) is None
    command = ("train", "--data", features, "--method", "contrastive", "--embedding-size", "8", "--batch-size", "32")
    printed = run_command(*command, "--epochs", "2", "--learning-rate", "3e-2", "--device", "cpu", "--out", "run")
    way_on = "robustdml train --resume --out run --epochs 4"
    assert way_on in printed.out and way_on in (tmp_path / "run" / "report.html").read_text()
    run_command(*way_on.split()[1:])
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 4


def test_kept_features_are_used_bit_for_bit(trained, features, clusters):
    """`test_using_models.py` exports and evaluates the same run."""
    folder = trained[0] / "features"
    stored = metrics_of(folder)
    assert stored["chosen"]["kept_features"] and stored["embedding_size"] == 20
    assert "The layer starts with" not in (folder / "report.html").read_text()
    assert {name: stored[name] for name in METRICS} == stored["untouched"] and stored["below_untouched"] is None
    card, state = read_model(folder)
    assert card.layer == "identity" and not state
    expected = unit_length(torch.from_numpy(clusters.test.inputs))
    assert torch.equal(load_embedder(folder).embed(clusters.test.inputs), expected)
    run_command("embed", folder, features, "-o", "out.npz", "--device", "cpu")
    assert np.array_equal(np.load("out.npz")["test_features"], expected.numpy())


def test_resume_keeps_the_features_and_what_is_told(clusters, tmp_path):
    config = TrainingConfig(epochs=3, batch_size=32)
    first = train(config, clusters, out=tmp_path, device="cpu")
    again = train(replace(config, epochs=4), clusters, out=tmp_path, resume=True, device="cpu")
    assert len(first.history) == len(again.history) == 1
    assert again.summary["chosen"] == first.summary["chosen"] and again.summary["chosen"]["kept_features"]
    assert {name: again.summary[name] for name in METRICS} == again.summary["untouched"]


def test_the_evidence_is_told_in_metrics_terminal_and_report(tmp_path):
    data = with_wrong_labels(mixture(classes=24, size=8), "symmetric:0.2", seed=0)
    result = train(TrainingConfig(epochs=3), data, out=tmp_path, device="cpu")
    chosen = metrics_of(tmp_path)["chosen"]
    (best,) = [one for one in chosen["contestants"] if one["chosen"]]
    assert best["supported"] and not chosen["kept_features"]
    assert (chosen["filter"], best["averaging"]) == (result.summary["filter"], result.summary["averaging"])
    assert best["splits"] == 2 and best["classes"] == 16 and best["mean_average_precision_at_r_error"] > 0
    assert result.summary["learning_rate"] == best["learning_rate"]
    assert [one["averaging"] for one in chosen["contestants"]] == [*trials.TRIED, *trials.TRIED, 0]
    assert chosen["steps"] == 12 and 0.05 < chosen["doubted"] < 0.4
    page = render_run(result, data)
    for text in ("What was chosen", chosen["advice"], "→ "):
        assert text in page
    assert chosen["advice"].startswith("Chosen: ")
    source = save_features(data, tmp_path / "data.npz")
    printed = " ".join(run_command("train", "--data", source, "--epochs", "3", "--device", "cpu").out.split())
    assert "with filter audit" in printed and "Chosen: " in printed and "points of MAP@R" in printed


def awkward(kind):
    data = mixture(classes=24, size={"rank": 5, "pairs": 2, "long tail": 40}.get(kind, 8))
    splits = []
    for split in (data.train, data.test):
        x, rows = split.inputs, slice(None)
        if kind == "offset":
            x = x + np.float32(3)
        elif kind == "constant columns":
            x = np.concatenate([x, np.full((len(x), 6), 9, np.float32)], 1)
        elif kind == "rank":  # More features than samples, many of them copies of others
            x = 1e-4 * np.tile(x, (1, 8))
        elif kind == "long tail":
            rows = np.arange(len(x)) % 40 < np.maximum(2, 40 // (split.labels + 1))
        splits.append(Split(x[rows], split.labels[rows], split.class_names))
    return RetrievalData(kind, *splits)


@pytest.mark.parametrize("kind", ["offset", "constant columns", "rank", "pairs", "long tail"])
def test_awkward_data_end_not_below_the_features(kind):
    for noise in ("none", "symmetric:0.4"):
        result = train(TrainingConfig(epochs=3), with_wrong_labels(awkward(kind), noise, seed=0), device="cpu")
        for name in ("precision_at_1", "mean_average_precision_at_r"):
            assert result.summary[name] >= result.summary["untouched"][name] - 0.01
