import json
import os
import signal
import subprocess
import sys

import pytest

from app.tests.conftest import save_features, save_photos, settings_of
from robustdml.cli import COMMANDS, main
from robustdml.run.run import Run


@pytest.fixture
def features(tmp_path, clusters):
    return save_features(clusters, tmp_path / "clusters.npz")


def test_trains_and_resumes(features, tmp_path, capsys):
    command = ["train", "--data", features, "--noise", "symmetric:0.2", "--batch-size", "32", "--device", "cpu"]
    out = str(tmp_path / "run")
    assert main([*command, "--epochs", "1", "--out", out]) == 0
    assert "Recall@1" in capsys.readouterr().out
    assert main([*command, "--epochs", "2", "--out", out, "--resume"]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["epoch"] == 2


def test_trains_with_a_filter_and_writes_a_report(features, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["train", "--data", features, "--method", "mcl", "--filter", "prism-vmf", "--filter-vmf-epochs", "1"]
    command += ["--noise", "symmetric:0.25", "--noise-rate", "0.2", "--mcl-margin", "0.4"]
    command += ["--filter-threshold", "per-class", "--filter-without-copies", "--batch-size", "32", "--epochs", "2"]
    assert main([*command, "--out", str(out), "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "right labels among the kept" in text
    assert "score of right against wrong labels, AUC" in text
    assert "MCL with prism-vmf" in (out / "report.html").read_text()
    settings = settings_of(out)
    expected = {"kind": "prism-vmf", "threshold": "per-class", "without_copies": True, "vmf_epochs": 1}
    assert expected.items() <= settings["filter"].items()
    assert settings["mcl"]["margin"] == 0.4 and settings["noise_rate"] == 0.2


def test_each_setting_of_the_filter_that_a_method_asks_for_may_be_given_otherwise(features, tmp_path):
    def chosen(*options):
        out = tmp_path / "-".join(["run", *options])
        command = ["train", "--data", features, "--batch-size", "32", "--epochs", "1", "--device", "cpu"]
        assert main([*command, *options, "--out", str(out)]) == 0
        return settings_of(out)

    default = chosen()
    assert default["method"] == "robust"
    assert {"kind": "prism-vmf", "threshold": "cautious", "without_copies": True}.items() <= default["filter"].items()
    changed = chosen("--filter-window", "5", "--no-filter-without-copies")["filter"]
    assert changed == {**default["filter"], "window": 5, "without_copies": False}
    assert chosen("--filter", "none")["filter"]["kind"] == "none"
    assert chosen("--method", "contrastive")["filter"]["kind"] == "none"


def test_trains_on_a_folder_with_an_own_backbone(tmp_path, monkeypatch, capsys):
    save_photos(tmp_path / "photos", classes=4, images=5, size=(9, 11))
    (tmp_path / "cli_backbone.py").write_text("from torch.nn import Flatten as make\n")
    monkeypatch.chdir(tmp_path)
    command = ["train", "--data", "photos", "--image-size", "8", "--backbone", "cli_backbone:make", "--epochs", "1"]
    for options in ([], ["--finetune"], ["--method", "smooth-proxy-anchor"]):
        assert main([*command, *options, "--batch-size", "9", "--device", "cpu"]) == 0
        assert "MAP@R" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "data 'nowhere'"),
        (["--noise", "symmetric:2"], "noise 'symmetric:2'"),
        (["--resume"], "--resume needs --out"),
        (["--data", "{features}", "--noise", "loud:0.5"], "expected one of none, symmetric:RATE"),
        (["--data", "{features}", "--mcl-margin", "nan", "--method", "mcl"], "method mcl: margin must be"),
        (["--data", "{features}", "--backbone", "a:b"], "holds features"),
        (["--data", "{features}", "--out", "/proc/nowhere/run"], "/proc/nowhere"),
    ],
)
def test_errors_of_use_are_one_line(arguments, message, features, capsys):
    assert main(["train", *(argument.format(features=features) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("robustdml train: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in captured.err


def test_a_command_is_needed_and_help_names_all(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "usage: robustdml" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_an_interrupted_run_says_how_it_goes_on_and_does(features, tmp_path, monkeypatch, capsys):
    """By the signal that Ctrl-C sends, before the first epoch and after it."""
    out = str(tmp_path / "run")
    # Without the trial, whose epochs are not those of the run.
    command = ["train", "--data", features, "--batch-size", "32", "--epochs", "2", "--averaging", "1"]
    whole = Run.train_epoch
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted_after(epochs, *options):
        def train_epoch(run, *arguments, **more):
            if run.epoch == epochs:
                signal.raise_signal(signal.SIGINT)
            whole(run, *arguments, **more)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "train_epoch", train_epoch)
            assert main([*command, *options]) == 130
        return capsys.readouterr().err.splitlines()[-1]

    try:
        assert interrupted_after(1) == "robustdml train: interrupted; nothing is kept of a run without --out"
        first = interrupted_after(0, "--out", out, "--noise", "symmetric:0.2")
        assert first == "robustdml train: interrupted; no epoch was done, and the same command starts anew"
        second = interrupted_after(1, "--out", out, "--noise", "symmetric:0.2")
        assert second == f"robustdml train: interrupted; --out {out} --resume goes on after the last whole epoch"
    finally:
        signal.signal(signal.SIGINT, before)
    # The settings are those of the run.
    assert main(["train", "--out", out, "--resume"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["epoch"], metrics["noise"]) == (2, "symmetric:0.2")


def test_core_imports_without_the_extras_and_recipes_name_them():
    script = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in ("rich", "PIL") else find(name, *rest)
import robustdml_ops.losses, robustdml_ops.robust
assert not {"rich", "PIL", "matplotlib"} & set(sys.modules), sorted(sys.modules)
import robustdml
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert "AssertionError" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "ImportError: robustdml needs pillow, rich: install with `pip install robustdml`"
    )


@pytest.mark.parametrize(
    ("command", "given", "expected"),
    [
        ("train", {}, "passive"),
        pytest.param("doctor", {}, None, marks=pytest.mark.nightly),
        pytest.param("train", {"OMP_WAIT_POLICY": "active"}, "active", marks=pytest.mark.nightly),
    ],
)
def test_threads_that_wait_sleep_unless_somebody_says_otherwise(command, given, expected):
    """Set before PyTorch is imported: OpenMP reads it once."""
    code = (
        "import os, sys; from robustdml import __main__; assert 'torch' not in sys.modules; "
        f"sys.argv = ['robustdml', '{command}', '--help']\n"
        "try: __main__.main()\nexcept SystemExit: pass\n"
        "print('policy', os.environ.get('OMP_WAIT_POLICY'))"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment | given, capture_output=True, text=True, check=True
    )
    assert out.stdout.splitlines()[-1] == f"policy {expected}"
