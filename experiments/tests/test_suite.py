"""The comparison over several data sets: where outcomes lie, what is left out and told, and going on after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.tests.conftest import save_features
from experiments.__main__ import main
from experiments.commands import compare as compare_command
from experiments.comparison import plan
from experiments.comparison.ablations import ALL_ENTRIES
from experiments.comparison.cells import AS_GIVEN, UNTOUCHED_AS_GIVEN, Cell
from experiments.comparison.plan import expand_names, make_plan
from experiments.taxonomy import TREES, ClassTree
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.data.named import NAMED, NamedData
from robustdml.errors import UsageError
from robustdml.noise import parse_noise, with_wrong_labels
from robustdml.train import train

SMALL = ["--methods", "robust", "contrastive", "--epochs", "1", "--seeds", "2", "--workers", "1", "--device", "cpu"]


@pytest.fixture
def two(clusters, tmp_path):
    """The same samples in two files, in the second some of them."""
    fewer = replace(clusters.train, inputs=clusters.train.inputs[::2], labels=clusters.train.labels[::2])
    half = save_features(replace(clusters, train=fewer), tmp_path / "half.npz")
    return [save_features(clusters, tmp_path / "clusters.npz"), half]


def outcomes(folder):
    return {str(path.relative_to(folder / "cells")): path for path in (folder / "cells").rglob("*.json")}


@pytest.mark.nightly
def test_several_data_sets_side_by_side(two, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["compare", "--data", *two, *SMALL, "--noise", "none", "symmetric:0.5", "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert set(outcomes(out)) == {
        f"{data}/{entry}__{noise}__seed{seed}.json"
        for data in ("clusters", "half")
        for entry in ("robust", "contrastive")
        for noise in ("none", "symmetric-0.5")
        for seed in (0, 1)
    }
    text = (out / "compare.md").read_text()
    assert printed.out.startswith(text.partition("\n\n")[2][:100])
    for heading in ("The bars", "Average ranks by Recall@1", "Average ranks by MAP@R", "clusters", "half"):
        assert f"## {heading}\n" in text
    # Each data set has the row of what it was before, its own.
    for name, source in zip(("clusters", "half"), two, strict=True):
        before = train(TrainingConfig(epochs=1), load_data(source), device="cpu").summary["untouched"]
        table = text[text.index(f"## {name}") :]
        assert f"| Untouched features | {before['precision_at_1']:.3f} | {before['precision_at_1']:.3f} |" in table
    assert (out / "compare.html").read_text().count("data:image/svg+xml") == 4
    assert (out / "average-ranks-by-recall-1.svg").exists()
    assert len(json.loads((out / "compare.json").read_text())) == 16
    # Once more: nothing is run, and the same is said. One of them alone: the table and nothing else.
    times = {name: path.stat().st_mtime_ns for name, path in outcomes(out).items()}
    assert main(command) == 0
    assert capsys.readouterr().out == printed.out
    assert times == {name: path.stat().st_mtime_ns for name, path in outcomes(out).items()}
    assert main(["compare", "--data", two[0], *SMALL, "--noise", "none", "symmetric:0.5", "--out", str(out)]) == 0
    alone = capsys.readouterr().out
    assert "## The bars" not in alone and "| Untouched features |" in alone
    assert times == {name: path.stat().st_mtime_ns for name, path in outcomes(out).items()}


@pytest.mark.nightly
def test_goes_on_after_it_was_killed(two, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "experiments", "compare", "--data", *two, *SMALL, "--epochs", "40"]
    command += ["--noise", "none", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        while not outcomes(out) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
    done = {name: path.stat().st_mtime_ns for name, path in outcomes(out).items()}
    assert 0 < len(done) < 8
    # The processes that trained end as well.
    deadline = time.monotonic() + 30
    while any(alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children and not any(alive(child) for child in children)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = outcomes(out)
    assert len(after) == 8 and done.items() <= {name: path.stat().st_mtime_ns for name, path in after.items()}.items()


def alive(process):
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_noise_that_a_data_set_cannot_have_is_left_out_and_told(two, tmp_path, capsys, clusters, monkeypatch):
    monkeypatch.setitem(TREES, "grouped", lambda names: ClassTree([(f"group {n // 4}",) for n in range(len(names))]))
    named = NamedData("clusters", lambda: replace(clusters, name="grouped"))
    monkeypatch.setitem(NAMED, "grouped", named)
    asked = []
    # The processes of a pool would not know the name that this test makes up.
    monkeypatch.setattr(compare_command, "run_missing", lambda cells, *_: asked.extend(cells) or {})
    out = tmp_path / "out"
    command = ["compare", "--data", "grouped", two[1], *SMALL, "--noise", "semantic:0.5", "none", "--out", str(out)]
    assert main(command) == 0
    error = capsys.readouterr().err
    assert "half, semantic:0.5 left out: semantic noise needs a tree of the classes of half" in error
    assert "grouped, semantic" not in error
    columns = dict.fromkeys((cell.data, cell.noise) for cell in asked)
    assert list(columns) == [("grouped", "semantic:0.5"), ("grouped", "none"), ("half", "none")] and len(asked) == 12
    # Nothing is left: there is nothing to show, and the reason is the error.
    assert main(["compare", "--data", two[1], *SMALL, "--noise", "semantic:0.5", "--out", str(out)]) == 2
    assert "needs a tree of the classes of half" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_data_set_that_is_not_to_be_had_is_told_and_the_others_are_run(two, tmp_path, capsys, monkeypatch):
    def refuse():
        raise UsageError("needs fonts: apt install fonts-of-old")

    monkeypatch.setitem(NAMED, "scrolls", NamedData("images", refuse))
    command = ["compare", *SMALL, "--noise", "none", "--out", str(tmp_path / "out")]
    assert main([*command, "--data", "scrolls", two[0]]) == 1
    captured = capsys.readouterr()
    assert "data scrolls left out: needs fonts: apt install fonts-of-old" in captured.err
    assert "| Contrastive |" in captured.out and len(outcomes(tmp_path / "out")) == 4
    assert main([*command, "--data", "scrolls"]) == 2
    assert "apt install fonts-of-old" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("compare --data clusters.npz --finetune", "clusters holds features: there is no backbone to choose"),
        ("compare --data clusters.npz --backbone untrained", "--backbone untrained is for --finetune"),
        ("compare --data clusters.npz --seeds 0", "seeds=0: expected at least 1"),
        ("compare --data clusters.npz --noise loud:2", "noise 'loud:2': expected one of none, symmetric:RATE"),
        ("compare --data clusters.npz other/clusters.npz", "a second one called clusters; rename one"),
        ("compare --data clusters.npz clusters.npz", "given twice"),
        ("compare --data clusters.npz glpyhs", "did you mean glyphs?"),
        ("compare --data clusters.npz --out stray", "holds 1 outcomes beside the folders"),
        ("compare --data clusters.npz --out stray", "robust__none__seed0.json: move each"),
        ("demo --large --seeds 2", "--seeds: with --large there is one run of each loss"),
        ("demo --data glyphs", "--data is for --large"),
        ("demo --quick", "--quick is for --large"),
        ("demo --large --epochs 0", "epochs=0: expected at least 1"),
        ("demo --large --threads -1", "threads=-1: expected at least 1"),
    ],
)
def test_what_is_refused(two, tmp_path, capsys, command, answer):
    """Before hours of training."""
    for folder in ("other", "stray/cells"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "other" / "clusters.npz").symlink_to(two[0])
    (tmp_path / "stray" / "cells" / "robust__none__seed0.json").write_text("{}")
    assert main(command.split()) == 2
    assert answer in capsys.readouterr().err


@pytest.mark.nightly
def test_right_labels_that_were_rejected_are_counted_in_large_classes(clusters):
    # Twelve classes of 21 samples; in half of them every other sample goes, so that ten are left.
    kept = (clusters.train.labels >= 6) | (np.arange(252) % 24 >= 12)
    train_split = replace(clusters.train, inputs=clusters.train.inputs[kept], labels=clusters.train.labels[kept])
    data = replace(clusters, train=train_split)
    entry = ALL_ENTRIES["contrastive-prism-vmf-per-class"]
    cell = Cell("clusters", entry, "symmetric:0.3", 0, TrainingConfig(epochs=2))
    result = train(cell.config, with_wrong_labels(data, cell.noise, cell.seed), device="cpu")
    rejected, right, large = 1 - result.scores["kept"], ~result.changed, data.train.labels >= 6
    found = cell.run(data, result.summary["untouched"], "cpu")["summary"]["right_rejected"]
    assert found == pytest.approx(np.nanmean(rejected[right & large])) and found > 0
    # Neither are small classes counted nor wrong labels.
    assert found not in [pytest.approx(np.nanmean(rejected[some])) for some in (right, large)]
    plain = Cell("clusters", ALL_ENTRIES["contrastive"], "none", 0, TrainingConfig(epochs=1))
    assert plain.run(data, result.summary["untouched"], "cpu")["summary"]["right_rejected"] is None


def test_wrong_test_labels_lower_what_features_and_embeddings_reach(clusters):
    cells = (
        Cell("", ALL_ENTRIES["contrastive"], noise, 0, TrainingConfig(epochs=1)) for noise in ("none", "symmetric:0.5")
    )
    right, wrong = (cell.run(clusters, None, "cpu")["summary"] for cell in cells)
    assert right["precision_at_1" + AS_GIVEN] == pytest.approx(right["precision_at_1"])
    assert right["precision_at_1" + UNTOUCHED_AS_GIVEN] == pytest.approx(right["untouched"]["precision_at_1"])
    assert all(0 < wrong["precision_at_1" + end] < 0.6 for end in (AS_GIVEN, UNTOUCHED_AS_GIVEN))


def test_what_is_compared_by_default_and_that_it_exists():
    one, suite = make_plan(False, False, None, None, None), make_plan(True, False, None, None, None)
    assert one.with_claims and not suite.with_claims
    assert [entry.name for entry in suite.entries] == list(plan.SUITE_ENTRIES)
    assert suite.entries[0].base in plan.SUITE_ENTRIES
    # Each rival runs from its own start and from robust's.
    starts = [TrainingConfig(**entry.settings).layer_start for entry in suite.entries[1:]]
    assert starts == ["random", "whitened"] * len(plan.RIVALS)
    mine = make_plan(False, False, ["suite", "robust", "mcl-prism-vmf"], ["none", "none"], 1)
    assert [entry.name for entry in mine.entries] == [*plan.SUITE_ENTRIES, "mcl-prism-vmf"]
    assert (mine.noises, mine.seeds, mine.with_claims) == (("none",), 1, False)
    assert expand_names(["suite", "x.npz"], quick=True) == [*plan.QUICK_SUITE_DATA, "x.npz"]
    assert expand_names(["suite-validation"], quick=False) == [f"{name}-validation" for name in plan.SUITE_DATA]
    assert set(plan.QUICK_SUITE_DATA) <= set(plan.SUITE_DATA) <= set(NAMED)
    assert set(expand_names(["suite-validation"], quick=False)) <= set(NAMED)
    assert set(plan.QUICK_SUITE_ENTRIES) <= set(plan.SUITE_ENTRIES) <= set(ALL_ENTRIES)
    assert set(plan.QUICK_SUITE_NOISES) <= set(plan.SUITE_NOISES)
    assert all(parse_noise(noise) or noise == "none" for noise in plan.SUITE_NOISES)
