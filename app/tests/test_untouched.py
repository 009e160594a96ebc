"""Retrieval metrics; and every run is held against those of the features as they were before it."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from app.tests.conftest import save_features
from robustdml.cli import main
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.errors import UsageError
from robustdml.evaluation import below_untouched, detection_auc, still_rising
from robustdml.networks.models import SmallCNN, apply_in_batches
from robustdml.reports.run_report import render_run
from robustdml.retrieval import METRICS, retrieval_metrics
from robustdml.train import train

FAST = TrainingConfig(method="proxy-anchor", epochs=1, batch_size=32, embedding_size=8)


def test_nothing_to_find_is_an_error():
    with pytest.raises(UsageError, match="at least 2 samples"):
        retrieval_metrics(np.eye(3, dtype=np.float32), np.arange(3))
    with pytest.raises(UsageError, match="NaN"):
        retrieval_metrics(np.full((4, 2), np.nan, dtype=np.float32), np.zeros(4, dtype=np.int64))


def test_detection_auc():
    changed = np.array([True, True, False, False])
    assert detection_auc(np.array([0.1, 0.4, 0.3, 0.9], np.float32), changed) == pytest.approx(0.75)
    assert detection_auc(np.ones(4, np.float32), np.zeros(4, bool)) is None
    assert detection_auc(np.ones(4, np.float32), np.ones(4, bool)) is None


def test_they_are_the_metrics_of_the_features_as_given(clusters, tmp_path):
    expected = retrieval_metrics(clusters.test.inputs, clusters.test.labels)
    result = train(FAST, clusters, out=tmp_path, device="cpu")
    assert result.summary["untouched"] == expected and set(expected) == set(METRICS)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["untouched"] == expected
    assert stored["below_untouched"] == below_untouched(result.history[-1], expected)
    known = dict.fromkeys(METRICS, 0.25)
    assert train(FAST, clusters, device="cpu", untouched=known).summary["untouched"] == known


def test_a_run_that_is_evaluated_at_its_end_alone_ends_the_same(noisy):
    config = replace(FAST, epochs=3, method="robust")
    whole = train(config, noisy, device="cpu")
    at_end = train(config, noisy, device="cpu", evaluate_each_epoch=False)
    assert [set(METRICS) <= set(record) for record in whole.history] == [True] * 3
    assert [bool(set(METRICS) & set(record)) for record in at_end.history] == [False, False, True]
    assert {**whole.history[-1], "seconds": 0} == {**at_end.history[-1], "seconds": 0}


class Pixels(nn.Module):
    """A backbone that trains, and that starts as something known."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32 * 32))

    def forward(self, images):
        return self.scale * images.flatten(1)


def test_of_a_backbone_that_trains_they_are_those_before_it_did_also_when_the_run_goes_on(
    tiny_images, tmp_path, monkeypatch
):
    (tmp_path / "pixels.py").write_text("from app.tests.test_untouched import Pixels as make\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = replace(FAST, backbone="pixels:make", finetune=True, batch_size=20, learning_rate=0.1)
    pixels = tiny_images.test.inputs.reshape(len(tiny_images.test), -1)
    expected = retrieval_metrics(pixels.astype(np.float32) / 255, tiny_images.test.labels)
    first = train(config, tiny_images, out=tmp_path / "run", device="cpu")
    assert first.embedder.backbone.scale.detach().std() > 0.01  # it did train
    again = train(replace(config, epochs=2), tiny_images, out=tmp_path / "run", resume=True, device="cpu")
    assert first.summary["untouched"] == again.summary["untouched"] == expected


def test_of_an_untrained_network_they_are_named_so(tiny_images):
    config = replace(FAST, backbone="untrained", finetune=True, batch_size=20, seed=3)
    result = train(config, tiny_images, device="cpu")
    torch.manual_seed(3)
    features = apply_in_batches(SmallCNN(1), tiny_images.test.inputs, torch.device("cpu"))
    assert result.summary["untouched"] == retrieval_metrics(features, tiny_images.test.labels)
    assert "untouched features of the untrained network" in render_run(result, tiny_images)


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
    sentence = below_untouched(
        {"precision_at_1": recall, "mean_average_precision_at_r": precision},
        {"precision_at_1": 0.9, "mean_average_precision_at_r": 0.5},
    )
    assert (sentence is None) == (not told)
    for part in told:
        assert part in sentence
    for absent in {"Recall@1", "MAP@R"} - {part.partition(" ")[0] for part in told}:
        assert absent not in (sentence or "")


def spoilt(clusters):
    """Features that tell the classes in two columns, which training shuns: they say nothing of the training labels."""
    random = np.random.default_rng(0)
    train, test = clusters.train, clusters.test
    angle = 2 * np.pi * test.labels / test.num_classes
    told = np.column_stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    return RetrievalData(
        "spoilt",
        replace(train, inputs=random.normal(size=(len(train), 2)).astype(np.float32)),
        replace(test, inputs=told),
    )


def test_a_run_that_does_harm_says_so_in_terminal_metrics_and_report(clusters, tmp_path, capsys):
    command = ["train", "--method", "proxy-anchor", "--embedding-size", "1", "--epochs", "1", "--device", "cpu"]
    source = save_features(spoilt(clusters), tmp_path / "spoilt.npz")
    assert main([*command, "--data", source, "--out", str(tmp_path / "harm")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    stored = json.loads((tmp_path / "harm" / "metrics.json").read_text())
    assert stored["untouched"]["precision_at_1"] == 1 > stored["precision_at_1"] + 0.01
    assert stored["below_untouched"].startswith("Training did harm: Recall@1 is ")
    assert "The way out: use the features as they are" in stored["below_untouched"]
    assert stored["below_untouched"] in printed
    assert "untouched features" in printed and "1.000" in printed
    report = (tmp_path / "harm" / "report.html").read_text()
    assert stored["below_untouched"] in report and "<td>1.000</td>" in report
    (curve,) = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="Recall', report)
    assert "untouched features" in base64.b64decode(curve).decode()


def test_a_run_that_does_none_says_nothing(features, tmp_path, capsys):
    """With averaging 0 it ends with the features that it began with."""
    command = ["train", "--averaging", "0", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path / "fine")]
    assert main([*command, "--data", features]) == 0
    assert json.loads((tmp_path / "fine" / "metrics.json").read_text())["below_untouched"] is None
    assert "did harm" not in capsys.readouterr().out + (tmp_path / "fine" / "report.html").read_text()


def test_a_curve_that_still_rises_is_told_with_the_command_that_goes_on(features, tmp_path, capsys):
    history = [{"mean_average_precision_at_r": value} for value in (0.1, 0.2, 0.3, 0.4, 0.4, 0.405)]
    assert still_rising(history, tmp_path) is None and still_rising(history[:1], tmp_path) is None
    assert still_rising(history[:3], None).endswith(
        "from 0.200 to 0.300 in the last third of the epochs. To go on: epochs 6"
    )
    assert still_rising([{"loss": 1.0}, *history[:1]], None) is None
    command = ["train", "--data", features, "--method", "contrastive"]
    command += ["--embedding-size", "8", "--batch-size", "32", "--device", "cpu", "--learning-rate", "3e-2"]
    assert main([*command, "--epochs", "2", "--out", "run"]) == 0
    way_on = "robustdml train --resume --out run --epochs 4"
    assert way_on in capsys.readouterr().out and way_on in (tmp_path / "run" / "report.html").read_text()
    assert main(way_on.split()[1:]) == 0
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 4
