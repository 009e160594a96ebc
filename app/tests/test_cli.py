import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

import robustdml
import robustdml_ops
from app.tests.conftest import SMALL, metrics_of, refused, run_command
from robustdml import cli
from robustdml.__main__ import main as start
from robustdml.cli import COMMANDS
from robustdml.command_line import CommandParser
from robustdml.commands import train
from robustdml.methods import METHODS
from robustdml.run.run import Run
from tests.subprocesses import ROOT, printed, run_build, run_python


def test_a_command_is_needed_and_help_and_version_are_options():
    assert "usage: robustdml" in refused()
    assert all(command in run_command("--help").out for command in COMMANDS)
    assert run_command("--version").out == f"robustdml {robustdml_ops.__version__}\n"


@pytest.mark.nightly
def test_the_wheel_writes_the_pages(clusters_file, tmp_path):
    """Of the wheel alone: their styles and scripts are no Python files."""
    ignored = shutil.ignore_patterns("tests", "build", "*.egg-info", "__pycache__")
    source, site = shutil.copytree(ROOT / "app", tmp_path / "app", ignore=ignored), tmp_path / "site"
    built = run_build("-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", tmp_path, source)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    train = ["train", "--data", clusters_file, "--method", "proxy-nca", "--epochs", "1", "--out", f"{tmp_path}/train"]
    audit = ["audit", clusters_file, "--as-they-are", "--out", f"{tmp_path}/audit"]
    code = f"from robustdml.cli import main; assert [main({train}), main({audit})] == [0, 0]"
    done = run_python("-c", code, PYTHONPATH=f"{site}{os.pathsep}{ROOT}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train" / "report.html").exists() and (tmp_path / "audit" / "audit.html").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGUSR1")
def test_an_ended_run_says_how_it_goes_on_and_does(features, tmp_path, monkeypatch):
    """By Ctrl-C or a cluster's signal: before the first step, in a step, in an evaluation."""
    out = str(tmp_path / "run")
    # Without the trial, whose epochs are not those of the run.
    command = ["train", "--data", features, "--batch-size", "32", "--epochs", "2", "--averaging", "1"]
    kept = ["--out", out, "--noise", "symmetric:0.2"]
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def ended_in(name, number, status, *options):
        whole = getattr(Run, name)

        def method(run, *arguments):
            signal.raise_signal(number)
            return whole(run, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Run, name, method)
            said = run_command(*command, *options, status=status).err
        return said.splitlines()[-1].removeprefix("robustdml train: ")

    try:
        anew = "nothing was saved yet, and the same command starts anew"
        goes_on = f"--out {out} --resume goes on from the last checkpoint"
        assert ended_in("_step", signal.SIGINT, 130, *kept) == f"interrupted; {anew}"
        assert ended_in("fit_inputs", signal.SIGUSR1, 75, *kept) == f"ended by SIGUSR1; {anew}"
        saved = "ended by SIGTERM after step 1 of epoch 1, which is saved"
        assert ended_in("_step", signal.SIGTERM, 75, *kept) == f"{saved}; {goes_on}"
        # All steps of the epoch, without the metrics.
        saved = "ended by SIGTERM after step 7 of epoch 1, which is saved"
        assert ended_in("evaluate", signal.SIGTERM, 75, *kept, "--resume") == f"{saved}; {goes_on}"
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert all(signal.getsignal(number) == handler for number, handler in handlers.items())
    # The settings are those of the run.
    run_command("train", "--out", out, "--resume", "--checkpoint-every", "2h")
    run_command(*command, "--noise", "symmetric:0.2", "--out", f"{out}-unbroken")
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "run-unbroken")


@pytest.mark.parametrize("allocate", [lambda _: torch.empty(2**55), lambda _: np.empty(2**55)])
def test_no_memory_is_told_in_one_line(allocate, monkeypatch):
    monkeypatch.setattr(train, "run", allocate)
    assert refused("train").startswith("robustdml train: not enough memory (")


def test_threads_that_wait_sleep_unless_somebody_says_otherwise(monkeypatch):
    """Set before PyTorch is imported: OpenMP reads it once."""
    assert printed("import sys, robustdml.__main__; print('torch' in sys.modules)") == "False"
    monkeypatch.setattr(cli, "main", lambda: 0)
    for given, expected in (
        ({}, "passive"),
        ({"OMP_WAIT_POLICY": "active"}, "active"),
        ({"GOMP_SPINCOUNT": "9"}, None),
    ):
        with patch.dict(os.environ, given, clear=True):
            assert start() == 0
            assert os.environ.get("OMP_WAIT_POLICY") == expected


def test_usage_names_what_must_be_given():
    parser = CommandParser(prog="robustdml embed")
    parser.add_argument("model")
    parser.add_argument("images", nargs="+", metavar="IMAGES")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed")
    parser.shorten_usage()
    assert parser.format_usage().startswith("usage: robustdml embed [OPTIONS] MODEL IMAGES … --out OUT ")


def test_help_of_training_is_led_by_a_short_usage_and_shows_defaults():
    text = " ".join(run_command("train", "--help").out.split())
    assert text.startswith("usage: robustdml train [OPTIONS] (--help lists the options) Train")
    for line in (
        "seed of the choice of test classes (default: 0)",
        "of positive pairs (default: 0.0)",
        "(default: glyphs)",
        "(default: 256)",
        *("--noise", "--resume", "--finetune", "--amp", "--smooth-beta", "--filter-threshold"),
    ):
        assert line in text
    assert "(default: None)" not in text and "(default: False)" not in text
    assert all(method in text for method in METHODS)


def test_an_editable_install_imports_beside_a_folder_of_its_name(tmp_path):
    """A folder without ``__init__.py`` comes before the finder of an editable install, and not before a path."""
    source, copy = Path(robustdml.__file__).parents[1], tmp_path / "app"
    shutil.copytree(source / "robustdml", copy / "robustdml", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(source / name, copy / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=copy, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (installed,) = (name for name in archive.namelist() if "/" not in name)
        assert installed.endswith(".pth") and archive.read(installed).decode().strip() == str(copy)


def test_warnings_of_pillow_are_told_with_the_file(image_model, tmp_path):
    """This one is about EXIF that is cut off."""
    (tmp_path / "photos").mkdir()
    exif = b"Exif\0\0II*\0\x08\0\0\0\x05\0"
    Image.new("RGB", (40, 40)).save(tmp_path / "photos" / "a.jpg", exif=exif)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        said = run_command("embed", image_model, tmp_path / "photos", "-o", tmp_path / "e.npz").err
    assert f"robustdml: {tmp_path}/photos/a.jpg: Corrupt EXIF data." in said and "PIL" not in said


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("embed RUN photos -o e.npz", {"embeddings", "arrays"}),
        ("evaluate RUN --data photos", {"samples", "mean_average_precision_at_r"}),
        ("search RUN photos --in photos", {"queries", "page"}),
        ("export RUN -o e.pt2", {"program", "metadata", "largest_difference"}),
        (f"train --data photos --out run {' '.join(SMALL)}", {"method", "model", "report"}),
    ],
)
def test_results_as_one_object_of_json(command, keys, image_model, photos):
    printed = run_command(*command.replace("RUN", str(image_model)).split(), "--json").out
    assert keys <= json.loads(printed).keys()
