"""The demo, and the one of very many classes."""

import base64
import json
import re
from dataclasses import replace
from unittest.mock import Mock

import pytest
from torch import nn

from app.tests.conftest import make_split
from app.tests.test_hostile_pages import Elements
from experiments.__main__ import main
from experiments.commands import demo
from experiments.demo import experiment, timing
from experiments.demo.report import believed_labels
from experiments.demo.timing import FLOOR, OURS, Shape, measure
from experiments.large import experiment as large
from experiments.large import trial
from experiments.large.contenders import BY_NAME, CONTENDERS, QUICK_CONTENDERS
from experiments.large.page import HEAD, LargeOutcome, comparisons, rows
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.errors import UsageError
from robustdml.evaluation import below_untouched
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS
from robustdml.networks.backbones import choice
from robustdml.noise import with_wrong_labels
from robustdml.progress import silent
from robustdml.train import train

SCALE = large.Scale(epochs=1, embedding_size=8, threads=1)


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


@pytest.fixture
def many():
    """Features of 4,000 classes of two samples."""
    return RetrievalData("many", make_split(8000, 4000, 16, 0, 0.1), make_split(60, 30, 16, 1, 0.1))


def make_task(data, contender):
    files, _ = large.untouched(data, silent)
    return trial.Task(contender, "symmetric:0.5", 2, 8, 1, data.name, files["train"], files["test"])


def test_the_same_loss_gives_the_same_numbers(clusters):
    for method in ("proxy-anchor", "normalized-softmax"):
        ours, peer = (trial.run(make_task(clusters, method + end)) for end in ("", "-peer"))
        assert METHODS[method].make_loss is not BY_NAME[f"{method}-peer"].make_method().make_loss
        for mine, theirs in zip(ours["history"], peer["history"], strict=True):
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
            assert mine["precision_at_1"] == pytest.approx(theirs["precision_at_1"], abs=0.03)
        assert ours["step_seconds"] > 0
        assert 0 < sum(record["seconds"] for record in ours["history"]) <= ours["seconds"]


def test_the_peer_is_the_peer():
    for contender in CONTENDERS:
        loss = contender.make_method().make_loss(contender.config(1, 8).options, 5, 8)
        assert type(loss).__module__.startswith("pytorch_metric_learning" if contender.peer else "robustdml_ops")
        assert contender.name == next(name for name, value in BY_NAME.items() if value is contender)
    filters = {contender.name: contender.config(1, 8).filter_options for contender in CONTENDERS}
    assert filters["proxy-anchor"].kind == filters["proxy-anchor-peer"].kind == "none"
    # That of the method called robust, with a memory of half the bytes.
    halved = replace(METHODS["robust"].filter, memory_dtype="bfloat16", on_trial=False)
    assert filters["proxy-anchor-filtered"] == filters["robust"] == halved


@pytest.mark.nightly
def test_memory_of_each_is_its_own(many, tmp_path):
    files, _ = large.untouched(many, silent)
    two, told = [BY_NAME[name] for name in ("proxy-anchor-peer", "proxy-anchor")], []
    results = large.run_missing(two, files, many.name, SCALE, tmp_path / "runs", lambda one, _: told.append(one))
    assert told == two
    peer, ours = results.values()
    if peer["extra_bytes"] is None:
        pytest.skip("this system does not tell the peak of a process's memory")
    # 45 bytes for each of 256 × 4,000 similarities, and at least three float32 of them at a time.
    assert peer["extra_bytes"] > 12 * 256 * 4000
    assert ours["extra_bytes"] < peer["extra_bytes"] / 3


def test_a_filter_counts_as_memory(clusters):
    result = trial.run(make_task(clusters, "robust"))
    assert result["filter_bytes"] > len(clusters.train) * 8 * 2
    assert {"filter_kept", "filter_precision"} <= set(result["history"][-1])


@pytest.mark.nightly
def test_command(features, tmp_path, capfd, monkeypatch):
    out = tmp_path / "out"
    two = QUICK_CONTENDERS[:2]
    monkeypatch.setattr(demo, "QUICK_CONTENDERS", two)
    command = ["demo", "--large", "--quick", "--data", features, "--epochs", "1", "--threads", "1", "--out", str(out)]
    assert main(command) == 0
    printed = capfd.readouterr().out
    assert printed.count(" ms a step, ") == 3  # two runs, and one against the other
    page = Elements((out / "large.html").read_text())
    assert page.open == []
    assert len(page.images) == 1
    assert "$" not in page.text
    assert all(title in page.text for title in HEAD)
    results = json.loads((out / "large.json").read_text())
    assert list(results["runs"]) == [contender.name for contender in two]
    assert f"{results['untouched']['precision_at_1']:.3f}" in page.text
    # Again: nothing is trained, and what is printed is the same.
    with monkeypatch.context() as patch:
        patch.setattr(large.subprocess, "run", lambda *_, **__: pytest.fail("trained again"))
        assert main(command) == 0
    assert capfd.readouterr().out == printed
    # Other settings: trained anew.
    trained = []

    def note(task, folder):
        trained.append(task.contender)
        return results["runs"][task.contender]

    monkeypatch.setattr(large, "_run", note)
    assert main([*command, "--epochs", "2"]) == 0
    assert trained == [contender.name for contender in two]


@pytest.mark.nightly
def test_a_run_that_fails_says_so_and_keeps_the_others(many, tmp_path, capfd):
    files, _ = large.untouched(many, silent)
    folder = tmp_path / "runs"
    done = []
    broken = {**files, "train": (str(tmp_path / "nowhere.npy"), files["train"][1])}
    with pytest.raises(UsageError, match=r"proxy-anchor failed \(exit status 1\)"):
        large.run_missing([BY_NAME["proxy-anchor"]], broken, many.name, SCALE, folder, lambda *_: done.append(1))
    assert not done
    assert "nowhere.npy" in capfd.readouterr().err
    assert not list(folder.glob("*.task.json"))


def test_interruption_says_the_way_on(features, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(large.subprocess, "run", Mock(side_effect=KeyboardInterrupt))
    assert main(["demo", "--large", "--quick", "--data", features, "--out", str(tmp_path / "out")]) == 130
    assert "the same command goes on with what is missing" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.task.json"))


def test_comparisons_hold_the_same_loss_against_the_peers():
    def result(milliseconds, megabytes):
        history = [{"seconds": 60.0, "precision_at_1": 0.5, "mean_average_precision_at_r": 0.25}]
        return {
            "history": history, "seconds": 60.0, "step_seconds": milliseconds / 1e3,
            "extra_bytes": megabytes * 2**20, "filter_bytes": 0,
        }  # fmt: skip

    results = {
        "proxy-anchor-peer": result(100, 200),
        "proxy-anchor": result(20, 10),
        "normalized-softmax-peer": result(60, 100),
        "robust": result(10, 50),
    }
    lines = comparisons(results)
    assert len(lines) == 3
    assert "20.0 ms a step" in lines[0]
    assert "5.0 times as fast, and 0.05 of its extra memory" in lines[0]
    assert "10.0 times as fast, and 0.25" in lines[1]
    assert "6.0 times as fast, and 0.50" in lines[2]
    table = rows(LargeOutcome("", {"precision_at_1": 0.9, "mean_average_precision_at_r": 0.8}, results, ""))
    assert table[0][:4] == ["untouched features", "–", "0.900", "0.800"]
    assert table[1] == ["Proxy-Anchor", "pytorch-metric-learning", "0.500", "0.250", "1.0", "100.0", "200", "–"]
    assert {len(row) for row in table} == {len(HEAD)}
