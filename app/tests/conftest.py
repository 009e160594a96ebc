import contextlib
import csv
import io
import json
import signal
import sys
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from app.tests.browser import browser
from robustdml.audit_report.findings import Finding
from robustdml.cli import main
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split, take_classes
from robustdml.methods import METHODS
from robustdml.networks.preparation import prepare
from robustdml.noise import with_wrong_labels
from robustdml.progress import Recorder
from robustdml.run.run import Run
from robustdml.train import train
from tests.nightly import nightly_but

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

CPU = torch.device("cpu")

# By day a method of each kind: a robust one, proxies, pairs, confidences.
EVERY_METHOD = nightly_but(
    ("robust", "proxy-anchor", "smooth-proxy-anchor", "adaptive-proxy-anchor", "multi-similarity", "procsim", "bspml"),
    METHODS,
)


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_session(tmp_path_factory):
    """Nor do the runs that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBUSTDML_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's cache, or leaves the folder of a run where it was started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_split(samples, classes, size, seed, spread):
    random = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    features = random.normal(size=(classes, size))[labels] + spread * random.normal(size=(samples, size))
    return Split(features.astype(np.float32), labels, tuple(f"class {c}" for c in range(classes)))


def make_clusters():
    """Features of 12 training classes and 9 others, close enough to be confused."""
    return RetrievalData("clusters", make_split(252, 12, 20, 1, 0.6), make_split(123, 9, 20, 2, 0.6))


@pytest.fixture
def clusters():
    return make_clusters()


@pytest.fixture(scope="session")
def feature_run(tmp_path_factory, cache_of_the_session):
    """A run on the clusters, and its folder."""
    folder = tmp_path_factory.mktemp("features") / "run"
    config = TrainingConfig(method="contrastive", epochs=1, batch_size=32, embedding_size=8)
    return train(config, make_clusters(), out=folder, device="cpu"), folder


def make_tiny_images():
    """Grey images, each class a pattern with noise."""

    def split(samples, classes, seed):
        features = make_split(samples, classes, 32 * 32, seed, 0.5)
        pixels = (features.inputs * 40 + 128).clip(0, 255).astype(np.uint8).reshape(-1, 1, 32, 32)
        return Split(pixels, features.labels, features.class_names)

    return RetrievalData("glyphs", split(60, 6, 3), split(45, 5, 4))


@pytest.fixture
def tiny_images():
    return make_tiny_images()


@pytest.fixture
def noisy(clusters):
    """The clusters with 30 % wrong labels."""
    return with_wrong_labels(clusters, "symmetric:0.3", seed=0)


@pytest.fixture
def clusters_file(tmp_path, clusters):
    """An .npz file of the clusters' training split, whose classes are divided into training and test."""
    path = tmp_path / "clusters.npz"
    np.savez(path, features=clusters.train.inputs, labels=clusters.train.labels)
    return str(path)


def save_features(data, path):
    """Write both splits to an .npz file; returns its path as a text."""
    arrays = {"features": data.train.inputs, "labels": data.train.labels}
    np.savez(path, **arrays, test_features=data.test.inputs, test_labels=data.test.labels)
    return str(path)


def save_photos(root, classes, images, size, spread=12):
    """Class folders of photographs, each class a colour with noise; `size` is (height, width)."""
    random = np.random.default_rng(0)
    for label, colour in enumerate(random.integers(40, 200, (classes, 3))):
        folder = root / f"class {label}"
        folder.mkdir(parents=True)
        for number in range(images):
            pixels = (random.normal(size=(*size, 3)) * spread + colour).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture
def features(tmp_path, clusters):
    """An .npz file of the clusters, both splits."""
    return save_features(clusters, tmp_path / "clusters.npz")


@pytest.fixture
def photos(tmp_path):
    """Class folders of photographs as `trained` had them."""
    return save_photos(tmp_path / "photos", **PHOTOS)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    with browser(folder) as one:
        one.folder = folder
        yield one


# A name in which no line can end.
LONG = "ant of pneumonoultramicroscopicsilicovolcanoconiosis"
SIZE = 24
PHOTOS = {"classes": 6, "images": 8, "size": (30, 40)}
# Options of `train` for a small network on few photographs.
SMALL = ("--image-size", str(SIZE), "--backbone", "untrained", "--finetune", "--method", "contrastive")
SMALL += ("--batch-size", "8", "--epochs", "1", "--device", "cpu")


@pytest.fixture(scope="session")
def trained(tmp_path_factory, cache_of_the_session):
    """Train a model of images and one of features by the command; also gives what was printed."""
    root = tmp_path_factory.mktemp("trained")
    photos, features = save_photos(root / "photos", **PHOTOS), save_features(make_clusters(), root / "clusters.npz")
    common = ("--epochs", "2", "--device", "cpu", "--out")
    printed = run_command("train", "--data", photos, *SMALL, "--embedding-size", "8", *common, root / "images")
    features_printed = run_command("train", "--data", features, "--batch-size", "32", *common, root / "features")
    return root, printed.out + features_printed.out


@pytest.fixture
def image_model(trained):
    """The folder of a run on photographs of `SIZE` pixels."""
    return trained[0] / "images"


class Printed(NamedTuple):
    """Output of a command, standard output and error."""

    out: str
    err: str


def run_command(*arguments, status=0):
    """Run a command that ends with a status, by its own check or by the parser's; what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        sys.exit(main([str(one) for one in arguments]))
    printed = Printed(out.getvalue(), err.getvalue())
    assert end.value.code == status, printed
    return printed


def refused(*arguments):
    """Run a command that ends with status 2; what it prints to stderr."""
    return run_command(*arguments, status=2).err


def csv_rows(file):
    """Rows of a table by the names of its columns."""
    with open(file, newline="", errors="surrogateescape") as opened:
        return list(csv.DictReader(opened))


def metrics_of(folder):
    """The metrics of a run, but for the time that it took."""
    return {**json.loads((folder / "metrics.json").read_text()), "training_seconds": 0}


def finding(sample, label="x", **changes):
    """What an audit found of a sample: that its label is right, but for changes."""
    return replace(Finding(str(sample), label, 0.9, label, 0.9, "right", -1), **changes)


def mixture(classes=12, size=20, features=24, nuisance=3.0, seed=0):
    """Classes that differ in a third of the directions, under a nuisance in others."""
    random = np.random.default_rng(seed)
    centres = np.zeros((2 * classes, features))
    centres[:, : features // 3] = random.normal(size=(2 * classes, features // 3))
    labels = np.repeat(np.arange(2 * classes), size)
    x = centres[labels] + 0.3 * random.normal(size=(len(labels), features))
    x[:, -2:] += nuisance * random.normal(size=(len(labels), 2))
    whole = Split(x.astype(np.float32), labels, tuple(f"class {c}" for c in range(2 * classes)))
    parts = np.split(np.arange(2 * classes), 2)
    return RetrievalData("mixture", *(take_classes(whole, part) for part in parts))


def begun(config, data):
    """A run before its first step."""
    return Run(config, prepare(config, data, CPU), CPU)


def settings_of(folder):
    """The configuration that a run stored in its checkpoint."""
    return torch.load(folder / "checkpoint.pt", weights_only=True)["config"]


def weights(result):
    return torch.cat([torch.zeros(0), *(one.detach().flatten() for one in result.embedder.parameters())])


class Ends(Recorder):
    """Counts steps, and ends a run by a signal in the middle of an epoch, or in the first step after some epochs."""

    def __init__(self, number=None, after=None):
        self.number, self.after, self.steps, self.epochs = number, after, 0, 0

    def epoch(self, record):
        self.epochs += 1

    def step(self, step, steps, loss):
        if self.epochs == self.after:
            raise KeyboardInterrupt
        self.steps += 1
        if self.number and step == (steps + 1) // 2:
            signal.raise_signal(self.number)


def check_resume(config, data, folder, stop):
    """Check that a run resumed after `stop` epochs, and again in the middle of one, equals an unbroken one."""
    whole = train(config, data, device="cpu", recorders=[unbroken := Ends()])
    # Not fewer epochs: trials of other lengths may choose otherwise.
    with pytest.raises(KeyboardInterrupt):
        train(config, data, out=folder, device="cpu", recorders=[first := Ends(after=stop)])
    with pytest.raises(SystemExit) as end:
        train(config, data, out=folder, resume=True, device="cpu", recorders=[second := Ends(signal.SIGTERM)])
    assert end.value.code == 75
    resumed = train(config, data, out=folder, resume=True, device="cpu", recorders=[third := Ends()])
    assert first.steps + second.steps + third.steps == unbroken.steps
    check_equal(whole, resumed)
    return whole, resumed


def check_equal(run, other):
    """Check that two runs have the same network, history but for times, and scores of samples."""
    assert torch.equal(weights(run), weights(other))
    for record, again in zip(run.history, other.history, strict=True):
        assert {**record, "seconds": 0} == {**again, "seconds": 0}
    assert run.scores.keys() == other.scores.keys()
    assert all(np.array_equal(score, other.scores[name], equal_nan=True) for name, score in run.scores.items())
