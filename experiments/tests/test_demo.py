import base64
import json
import re
from dataclasses import replace

import pytest
from torch import nn

from app.tests.test_hostile_pages import Elements
from experiments.__main__ import main
from experiments.commands import demo
from experiments.demo import experiment, timing
from experiments.demo.report import believed_labels
from experiments.demo.timing import FLOOR, OURS, Shape, measure
from robustdml.config import TrainingConfig
from robustdml.evaluation import below_untouched
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.networks.backbones import choice
from robustdml.noise import with_wrong_labels
from robustdml.train import train


@pytest.mark.nightly
def test_labels_are_shown_as_the_chosen_filter_held_them(clusters):
    steps_back = replace(METHODS["robust"].filter, on_trial=False)
    for asked, shown in (
        (steps_back, "log P_clean"),
        (FilterOptions("audit"), "probability that the label is right"),
        (FilterOptions(), "did best without a filter"),
    ):
        config = TrainingConfig(epochs=1, batch_size=64, averaging=1.0, filter=asked)
        section = believed_labels(train(config, with_wrong_labels(clusters, "symmetric:0.3", seed=0), device="cpu"))
        drawn = [base64.b64decode(image["src"].split(";base64,")[1]).decode() for image in Elements(section).images]
        assert len(drawn) == (asked.kind != "none")
        assert shown in section + "".join(drawn)


@pytest.fixture
def tiny_demo(tiny_images, monkeypatch):
    pixels = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
    monkeypatch.setattr(choice, "load_pretrained_cnn", lambda name, on_progress: pixels)
    monkeypatch.setattr(demo, "load_data", lambda source: tiny_images)
    monkeypatch.setattr(demo, "Shape", lambda: Shape(batch=16, classes=50, size=8))


def test_report_stands_alone_and_says_what_was_measured(tiny_demo, tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--seeds", "2", "--epochs", "2"]) == 0
    printed = capsys.readouterr().out
    assert "report.html" in printed
    text = (tmp_path / "report.html").read_text()
    assert (tmp_path / "learning-curves.svg").read_text().rstrip().endswith("</svg>")
    page = Elements(text)
    assert page.open == []
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    # One more where the robust method has chosen a filter.
    assert len(page.images) + page.text.count("did best without a filter") == 6
    for image in page.images:
        media, data = image["src"].split(";base64,")
        start = {"data:image/svg+xml": b"<?xml", "data:image/png": b"\x89PNG"}[media]
        assert base64.b64decode(data).startswith(start)
        assert len(image["alt"]) > 20
    assert "$" not in page.text
    results = json.loads((tmp_path / "results.json").read_text())
    twice = [method for method in experiment.METHODS_SHOWN for _ in range(2)]
    assert [run["method"] for run in results["runs"]] == twice
    plain = [run["precision_at_1"] for run in results["runs"][2:4]]
    assert f"{sum(plain) / 2:.3f} ±" in page.text
    assert f"{results['frozen_features']['precision_at_1']:.3f}" in page.text
    assert "50% of the labels" in page.text
    # The methods that ended below the untouched features, on average over the seeds, are named.
    frozen = results["frozen_features"]
    assert all(run["untouched"] == frozen for run in results["runs"])
    for place, method in enumerate(experiment.METHODS_SHOWN):
        pair = results["runs"][2 * place : 2 * place + 2]
        mean = {key: (pair[0][key] + pair[1][key]) / 2 for key in frozen}
        sentence = below_untouched(mean, frozen)
        for told in (printed, page.text):
            assert (f"{METHODS[method].title}: Training did harm" in told) == (sentence is not None)
            assert sentence is None or sentence in told
    assert "Untouched features" in page.text


@pytest.mark.nightly
def test_neighbours_are_the_nearest_others(tiny_demo, tiny_images):
    outcome = experiment.run_demo(tiny_images, 1, 1, Shape(4, 5, 6), lambda *_: None)
    assert len(outcome.neighbours) == experiment.QUERIES
    pixels = [image.tobytes() for image in tiny_images.test.inputs]
    for neighbour in outcome.neighbours:
        query = pixels.index(neighbour.query.tobytes())
        for found in neighbour.found.values():
            others = [pixels.index(image.tobytes()) for image, _ in found]
            assert len(set(others) - {query}) == experiment.FOUND
            labels = tiny_images.test.labels
            assert [right for _, right in found] == [labels[other] == labels[query] for other in others]


def test_times_are_checked_before_they_are_taken(monkeypatch):
    timings = measure(Shape(batch=9, classes=33, size=5), repetitions=2)
    assert {timing.loss for timing in timings} == {"Proxy-Anchor", "Smooth Proxy-Anchor"}
    assert [t.implementation for t in timings].count(OURS) == [t.implementation for t in timings].count(FLOOR) == 2
    assert all(timing.milliseconds > 0 for timing in timings)
    right = timing.proxy_anchor_loss
    monkeypatch.setattr(timing, "proxy_anchor_loss", lambda *arguments: 1.01 * right(*arguments))
    with pytest.raises(RuntimeError, match="dense reference differ in the value by"):
        measure(Shape(batch=9, classes=33, size=5), repetitions=1)
