"""Event files, read as TensorBoard reads them."""

import importlib.util
import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from app.tests.conftest import refused
from robustdml import train as train_module
from robustdml.cli import main


@pytest.fixture
def command(tmp_path, clusters_file):
    command = ["train", "--data", clusters_file, "--batch-size", "32", "--noise", "symmetric:0.25", "--device", "cpu"]
    command += ["--filter", "audit"]
    return [*command, "--out", str(tmp_path / "run"), "--logger", "tensorboard"]


def scalars(folder):
    """Steps and values by name."""
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def same_as_history(folder):
    records, found = history(folder), scalars(folder)
    names = {name for record in records for name in record} - {"epoch"}
    assert found.keys() == names
    for name, points in found.items():
        expected = [(record["epoch"], record[name]) for record in records if name in record]
        assert points == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected], name
    return found


def test_an_epoch_that_was_not_kept_is_there_once(command, tmp_path, monkeypatch):
    """The run breaks off after the event is written and before the checkpoint is."""
    save, saved = train_module.save_checkpoint, []

    def interrupt(*arguments):
        if saved:
            raise KeyboardInterrupt
        saved.append(save(*arguments))

    monkeypatch.setattr(train_module, "save_checkpoint", interrupt)
    assert main([*command, "--epochs", "3"]) == 130
    assert len(scalars(tmp_path / "run")["loss"]) == 2 and len(history(tmp_path / "run")) == 1
    monkeypatch.setattr(train_module, "save_checkpoint", save)
    assert main([*command, "--epochs", "3", "--resume"]) == 0
    assert len(same_as_history(tmp_path / "run")["loss"]) == 3


def test_a_run_that_takes_it_up_later_has_all_of_it(command, tmp_path):
    assert main([*command[:-2], "--epochs", "2"]) == 0
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert main([*command, "--epochs", "3", "--resume"]) == 0
    found = same_as_history(tmp_path / "run")
    assert {"loss", "filter_kept", "precision_at_1", "label_quality_auc"} <= found.keys()
    assert len(found["loss"]) == 3


def test_without_the_package_the_extra_is_named_before_anything_is_read(command, tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "robustdml.progress.find_spec",
        lambda name, *rest: None if name == "tensorboard" else find(name, *rest),
    )
    assert "pip install tensorboard" in refused(capsys, *command)
    assert not (tmp_path / "run").exists()
