"""Progress in a log, on a terminal, and in event files, read as TensorBoard reads them."""

import importlib.util
import io
import json
import os
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from app.tests.conftest import refused, run_command
from robustdml import progress
from robustdml import train as train_module
from robustdml.progress import Bar, Lines, progress_bar

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


@pytest.fixture
def clock(monkeypatch):
    """Time that stands still until it is told to go."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines(capsys):
    text = capsys.readouterr().err
    assert "\r" not in text and "\x1b" not in text
    assert all(re.match(STAMP, line) for line in text.splitlines())
    return [re.sub(STAMP, "", line) for line in text.splitlines()]


def test_a_log_has_a_line_now_and_then(clock, capsys):
    follow = Lines("Robust")
    follow("reading data", 0, 0)
    follow("reading data", 0, 0)
    assert lines(capsys) == ["Robust: reading data"]
    for done in range(41):
        follow("pretraining", done, 40)
        clock.now += 1
    assert lines(capsys) == [
        "Robust: pretraining, step 10/40, 1 steps/s, 0:00:30 left",
        "Robust: pretraining, step 20/40, 1 steps/s, 0:00:20 left",
        "Robust: pretraining, step 30/40, 1 steps/s, 0:00:10 left",
        "Robust: pretraining, step 40/40, 1 steps/s",
    ]
    for done in range(2):
        follow("checking images", 1000 * done, 2000)
        clock.now += 20
    assert lines(capsys)[-1] == "Robust: checking images, sample 1000/2000, 50 samples/s, 0:00:20 left"


def test_a_log_of_training_has_epochs_losses_and_the_time_that_is_left(clock, capsys):
    follow = Lines("Robust")
    follow.start([{}, {}], 4)
    clock.now += 500  # phase one
    for epoch in (3, 4):
        for step in range(1, 13):
            clock.now += 1 if step > 1 or epoch == 4 else 0
            follow.step(step, 12, None if step % 2 else torch.tensor(step / 8))
            follow(f"epoch {epoch} of 4", step, 12)
        clock.now += 1  # evaluation
        follow.epoch({"epoch": epoch, "loss": 0.123456, "precision_at_1": 0.75, "seconds": 12.0})
    follow.close()
    told = lines(capsys)
    assert "Robust: epoch 3 of 4, step 11/12, loss 1.25, 1 steps/s, 0:00:13 left" in told
    assert "Robust: epoch 3 of 4 done, loss 0.1235, Recall@1 0.7500, 12 s, 0:00:13 left" in told
    assert told[-1] == "Robust: epoch 4 of 4 done, loss 0.1235, Recall@1 0.7500, 12 s"
    assert len(told) <= 6


@pytest.mark.parametrize("width", [20, 40, 69, 120])
def test_a_bar_is_one_line_at_any_width(width):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, no_color=True)
    with Progress(console=console) as progress:
        bar = Bar("Robust", progress)
        bar.step(1, 2, torch.tensor(0.25))
        bar("epoch 3 of 4", 1, 2)
        progress.refresh()
        description = progress.tasks[0].description
    assert description == "Robust · epoch 3 of 4 · loss 0.25"
    frames = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n").splitlines()
    assert frames and all(len(frame) <= width for frame in frames)
    # The cursor never goes up: no frame has a second line.
    assert "\x1b[1A" not in stream.getvalue().rpartition("\n")[0]


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR"])
def test_a_file_gets_lines_whatever_the_variables_for_colour_say(monkeypatch, capsys, variable):
    monkeypatch.setenv(variable, "1")
    with progress_bar("Robust") as follow:
        follow("reading data", 0, 0)
    assert lines(capsys) == ["Robust: reading data"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals on Windows")
@pytest.mark.parametrize(
    ("variables", "kind", "coloured"),
    [({}, Bar, True), ({"NO_COLOR": "1"}, Bar, False), ({"TERM": "dumb"}, Lines, False)],
)
def test_on_a_terminal(variables, kind, coloured, monkeypatch):
    for name in [name for name in os.environ if name.endswith("COLOR")]:
        monkeypatch.delenv(name)
    for name, value in ({"TERM": "xterm-256color", "COLUMNS": "80"} | variables).items():
        monkeypatch.setenv(name, value)
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress_bar("Robust") as follow:
            follow("reading data", 0, 0)
        print("end", file=terminal, flush=True)
        text = b""
        while not text.rstrip().endswith(b"end"):
            text += os.read(ours, 65536)
    os.close(ours)
    assert type(follow) is kind and b"reading data" in text
    # Colours are ESC [ 3x m and ESC [ 9x m.
    assert bool(re.search(rb"\x1b\[[39]\dm|\x1b\[38;", text)) == coloured
    assert (b"\x1b[2K" in text) == (kind is Bar)


@pytest.fixture
def command(tmp_path, clusters_file):
    command = ["train", "--data", clusters_file, "--batch-size", "32", "--noise", "symmetric:0.25", "--device", "cpu"]
    command += ["--filter", "audit", "--averaging", "1"]
    return [*command, "--out", str(tmp_path / "run"), "--logger", "tensorboard"]


def scalars(folder):
    """Steps and values by name."""
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def same_as_history(folder):
    found = scalars(folder)
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
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
    run_command(*command, "--epochs", "3", status=130)
    assert len(scalars(tmp_path / "run")["loss"]) == 2
    assert (tmp_path / "run" / "history.jsonl").read_text().count("\n") == 1
    monkeypatch.setattr(train_module, "save_checkpoint", save)
    run_command(*command, "--epochs", "3", "--resume")
    assert len(same_as_history(tmp_path / "run")["loss"]) == 3


def test_a_run_that_takes_it_up_later_has_all_of_it(command, tmp_path):
    run_command(*command[:-2], "--epochs", "2")
    assert not (tmp_path / "run" / "tensorboard").exists()
    run_command(*command, "--epochs", "3", "--resume")
    found = same_as_history(tmp_path / "run")
    assert {"loss", "filter_kept", "precision_at_1", "label_quality_auc"} <= found.keys()
    assert len(found["loss"]) == 3


def test_without_the_package_the_extra_is_named_before_anything_is_read(command, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "robustdml.progress.find_spec",
        lambda name, *rest: None if name == "tensorboard" else find(name, *rest),
    )
    assert "pip install tensorboard" in refused(*command)
    assert not (tmp_path / "run").exists()
