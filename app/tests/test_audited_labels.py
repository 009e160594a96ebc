"""``train --labels``: what an audit has found, used in training."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.tests.conftest import SMALL, begun, check_resume, finding, metrics_of, refused, run_command, save_photos
from robustdml.audit_report.findings import Finding, read_findings, write_findings
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.errors import UsageError
from robustdml.noise import with_wrong_labels
from robustdml.reports.run_report import test_labels_note as labels_note
from robustdml.run.run import Run
from robustdml.train import train

WRONG = {3: 1, 40: 1, 70: 0, 100: 4}


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Six classes of 20 features, four labels wrong, and two classes to test on; beside it what an audit finds."""
    folder = tmp_path_factory.mktemp("audited")
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 20)
    X = (3 * np.eye(8, 12)[labels] + 0.4 * random.normal(size=(160, 12))).astype(np.float32)
    given = labels.copy()
    given[list(WRONG)] = list(WRONG.values())
    names = np.array(["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"])
    arrays = {"features": X[:120], "labels": given[:120], "test_features": X[120:], "test_labels": labels[120:]}
    np.savez(folder / "data.npz", **arrays, class_names=names)
    run_command("audit", folder / "data.npz", "--as-they-are", "--out", folder / "audit")
    return folder


@pytest.fixture
def source(audited, tmp_path):
    """A copy of the data and of what the audit found."""
    return shutil.copytree(audited, tmp_path / "audited") / "data.npz"


def findings_beside(source: Path) -> Path:
    return source.parent / "audit" / "labels.csv"


def run_of(source: Path, use: str, **settings) -> Run:
    config = TrainingConfig(labels=str(findings_beside(source)), labels_use=use, **settings)
    return begun(config, load_data(str(source)))


def test_wrong_labels_are_dropped(source):
    run = run_of(source, "drop")
    rows = np.delete(np.arange(120), list(WRONG))
    whole = load_data(str(source)).train
    assert (run.prepared.data.train.inputs == whole.inputs[rows]).all() and (run.labels == whole.labels[rows]).all()
    assert run.prepared.data.train.names() == [str(row) for row in rows]
    assert (run.prepared.frozen_features() == whole.inputs[rows]).all()
    assert run.audited | {"digest": ""} == {
        "use": "drop", "judged": 120, "dropped": 4, "corrected": 0, "digest": "", "test_dropped": 0,
    }  # fmt: skip


def test_wrong_labels_are_put_right(source):
    run = run_of(source, "correct", labels_confidence=0.5)
    assert len(run.labels) == 120 and run.audited["corrected"] == 4
    assert run.labels[list(WRONG)].tolist() == [row // 20 for row in WRONG]
    # A confidence that no proposal has drops them all.
    findings = [replace(one, proposed_probability=0.6) for one in read_findings(findings_beside(source))]
    write_findings(findings_beside(source), findings)
    assert run_of(source, "correct", labels_confidence=0.61).audited["dropped"] == 4


def test_noise_of_a_run_is_what_was_audited(tmp_path, clusters, noisy):
    """Where the true labels are known, the wrong ones that an audit has left are counted."""
    names = clusters.train.class_names
    findings = []
    for row, (label, truth) in enumerate(zip(noisy.train.labels.tolist(), clusters.train.labels.tolist(), strict=True)):
        verdict = "wrong" if label != truth and row % 2 else "right"
        findings.append(Finding(str(row), names[label], 0.5, names[truth], 0.95, verdict, -1))
    write_findings(tmp_path / "labels.csv", findings)
    labels = str(tmp_path / "labels.csv")
    config = TrainingConfig(epochs=1, method="contrastive", labels=labels, labels_use="correct")
    result = train(config, noisy)
    left = np.flatnonzero(noisy.train.labels != clusters.train.labels)
    assert result.summary["data"]["audited"]["corrected"] == (left % 2).sum()
    assert np.flatnonzero(result.changed).tolist() == left[left % 2 == 0].tolist()
    with pytest.raises(UsageError, match="under another label than was audited"):
        train(config, with_wrong_labels(clusters, "symmetric:0.3", seed=1))


def test_from_the_command_line(source, tmp_path):
    out, labels = tmp_path / "run", findings_beside(source)
    command = ["train", "--data", source, "--labels", labels, "--out", out, "--method", "contrastive"]
    printed = run_command(*command, "--labels-use", "correct", "--labels-confidence", "0.5", "--epochs", "1")
    told = "Of 120 samples 0 were dropped after an audit, and 4 are under another label."
    assert told in " ".join(printed.out.split())
    assert "4 are under another label" in (out / "report.html").read_text()
    assert metrics_of(out)["data"]["audited"]["corrected"] == 4
    settings = (out / "config.yaml").read_text()
    assert f"labels: {labels}\n" in settings and "labels_use: correct\n" in settings

    # A run goes on with the findings that it began with, and with no others.
    run_command("train", "--out", out, "--resume", "--epochs", "2")
    findings = [replace(one, verdict="right") if one.sample == "3" else one for one in read_findings(labels)]
    write_findings(labels, findings)
    assert "is of another run" in refused("train", "--out", out, "--resume", "--epochs", "3")


def test_a_resumed_run_equals_an_unbroken_one(source, tmp_path):
    config = TrainingConfig(labels=str(findings_beside(source)), epochs=2, averaging=1.0)
    check_resume(config, load_data(str(source)), tmp_path / "run", stop=1)


def test_folder_of_images_of_which_some_classes_are_tested_on(tmp_path):
    """The audit has judged all classes; a sample that belongs to one of the others is dropped."""
    save_photos(tmp_path / "images", classes=4, images=6, size=(8, 8))
    data = load_data(str(tmp_path / "images"), image_size=32)
    mine, other = data.train.class_names[0], data.test.class_names[0]
    findings = [finding(file, file.parent.name) for file in sorted((tmp_path / "images").rglob("*.png"))]
    place = next(row for row, one in enumerate(findings) if one.label == mine)
    findings[place] = replace(findings[place], proposed=other, proposed_probability=0.99, verdict="wrong")
    write_findings(tmp_path / "labels.csv", findings)
    printed = run_command("train", "--data", "images", *SMALL, "--labels", "labels.csv", "--labels-use", "correct")
    assert "Of 12 samples 1 were dropped" in printed.out


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda all_: [replace(one, sample=f"x{one.sample}") for one in all_], [], "has none of the 120"),
        (lambda all_: all_[:-2], [], "has 118 of the 120"),
        (lambda all_: [*all_, all_[7]], [], "1 sample given twice: 7"),
        (lambda all_: [replace(all_[0], label="owl"), *all_[1:]], [], "0 ('owl' then, 'ant' now)"),
        (lambda all_: [replace(one, verdict="wrong") for one in all_], [], "no sample is left"),
        (lambda all_: all_, ["--labels-confidence", "0.5"], "has no effect without labels_use correct"),
        (lambda all_: all_, ["--labels-use", "correct", "--labels-confidence", "2"], "labels_confidence=2.0"),
        (lambda all_: all_, ["--filter", "prism-average", "--filter-threshold", "smooth-top-r"], "give noise_rate"),
        (lambda all_: all_, ["--labels", "", "--labels-use", "correct"], "no effect without the labels"),
        (lambda all_: all_, ["--labels", "missing.csv"], "missing.csv: not a readable labels.csv"),
    ],
)
def test_bad_input(source, change, options, words):
    labels = findings_beside(source)
    write_findings(labels, change(read_findings(labels)))
    said = refused("train", "--data", source, "--labels", labels, "--epochs", "1", *options)
    assert words in " ".join(said.split())


@pytest.mark.parametrize("use", ["drop", "correct"])
def test_an_audit_of_all_classes_is_of_the_test_samples_too(use, tmp_path, clusters_file):
    """And they are trained on all, where nothing is kept for testing."""
    for fraction in (0.5, 0):
        data = load_data(clusters_file, test_fraction=fraction)
        findings = {}
        for split in (data.train, data.test):
            names = split.class_names
            for place, (sample, label) in enumerate(zip(split.names(), split.labels.tolist(), strict=True)):
                verdict, proposed = ("wrong", names[label - 1]) if place == 7 else ("right", names[label])
                findings[sample] = Finding(sample, names[label], 0.5, proposed, 0.95, verdict, -1)
        write_findings(tmp_path / "labels.csv", list(findings.values()))
        config = TrainingConfig(epochs=1, method="contrastive", labels=str(tmp_path / "labels.csv"), labels_use=use)
        result = train(config, data, device="cpu")
        dropped = int(use != "correct")
        assert result.summary["data"]["audited"]["test_dropped"] == dropped
        assert result.summary["test"]["samples"] == len(data.test) - dropped
        assert result.summary["test"]["trained_on"] == (result.summary["test"]["classes"] if fraction == 0 else 0)
        assert ("used as they are" in labels_note(result)) == (fraction > 0 and not dropped)
