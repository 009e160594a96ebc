import json
from dataclasses import replace

import numpy as np
import pytest

from app.tests.conftest import save_features
from app.tests.test_hostile_pages import Elements
from experiments.__main__ import main
from experiments.commands import demo
from experiments.large import experiment, trial
from experiments.large.contenders import BY_NAME, CONTENDERS, QUICK_CONTENDERS
from experiments.large.page import HEAD, LargeOutcome, comparisons, rows
from robustdml.data import RetrievalData, Split
from robustdml.errors import UsageError
from robustdml.methods import METHODS
from robustdml.progress import silent

SCALE = experiment.Scale(epochs=1, embedding_size=8, threads=1)


@pytest.fixture
def many():
    """Features of 4,000 classes of two samples."""
    random = np.random.default_rng(0)

    def split(classes):
        labels = np.repeat(np.arange(classes), 2)
        features = random.normal(size=(classes, 16))[labels] + 0.1 * random.normal(size=(len(labels), 16))
        return Split(features.astype(np.float32), labels, tuple(map(str, range(classes))))

    return RetrievalData("many", split(4000), split(30))


@pytest.fixture
def npz(tmp_path, clusters):
    return save_features(clusters, tmp_path / "clusters.npz")


def make_task(data, contender):
    files, _ = experiment.untouched(data, silent)
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
    files, _ = experiment.untouched(many, silent)
    told = []
    results = experiment.run_missing(
        [BY_NAME[name] for name in ("proxy-anchor-peer", "proxy-anchor")],
        files,
        many.name,
        SCALE,
        tmp_path / "runs",
        lambda contender, result: told.append(contender.name),
    )
    assert told == ["proxy-anchor-peer", "proxy-anchor"]
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
def test_command(npz, tmp_path, capfd, monkeypatch):
    out = tmp_path / "out"
    two = QUICK_CONTENDERS[:2]
    monkeypatch.setattr(demo, "QUICK_CONTENDERS", two)
    command = ["demo", "--large", "--quick", "--data", npz, "--epochs", "1", "--threads", "1", "--out", str(out)]
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
        patch.setattr(experiment.subprocess, "run", lambda *_, **__: pytest.fail("trained again"))
        assert main(command) == 0
    assert capfd.readouterr().out == printed
    # Other settings: trained anew.
    trained = []

    def note(task, folder):
        trained.append(task.contender)
        return results["runs"][task.contender]

    monkeypatch.setattr(experiment, "_run", note)
    assert main([*command, "--epochs", "2"]) == 0
    assert trained == [contender.name for contender in two]


@pytest.mark.nightly
def test_a_run_that_fails_says_so_and_keeps_the_others(many, tmp_path, monkeypatch, capfd):
    files, _ = experiment.untouched(many, silent)
    folder = tmp_path / "runs"
    done = []
    broken = {**files, "train": (str(tmp_path / "nowhere.npy"), files["train"][1])}
    with pytest.raises(UsageError, match=r"proxy-anchor failed \(exit status 1\)"):
        experiment.run_missing([BY_NAME["proxy-anchor"]], broken, many.name, SCALE, folder, lambda *_: done.append(1))
    assert not done
    assert "nowhere.npy" in capfd.readouterr().err
    assert not list(folder.glob("*.task.json"))


def test_interruption_says_the_way_on(npz, tmp_path, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment.subprocess, "run", interrupt)
    assert main(["demo", "--large", "--quick", "--data", npz, "--out", str(tmp_path / "out")]) == 130
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
