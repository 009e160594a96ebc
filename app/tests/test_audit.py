"""``robustdml audit`` and ``apply``, from files to files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from app.tests.conftest import csv_rows, finding, refused, run_command, save_photos
from robustdml import load_embedder
from robustdml.audit.classes import doubt_classes
from robustdml.audit_report import learning
from robustdml.audit_report.copies import find_copies, trained_on
from robustdml.audit_report.findings import Decisions, Finding, clean_labels, read_decisions, read_findings
from robustdml.audit_report.outlook import outlook
from robustdml.audit_report.questions import Question, Section, copies_by_kind
from robustdml.data.dataset import Samples
from robustdml.errors import UsageError

HOSTILE = '<img src=x onerror=alert(1)>"&'


@pytest.fixture
def features(tmp_path):
    """An .npz file of four classes, three labels wrong, one row of NaN, a pair of duplicates under two labels."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 30)
    X = (3 * np.eye(4, 12)[labels] + 0.4 * random.normal(size=(120, 12))).astype(np.float32)
    given = labels.copy()
    given[[3, 40, 70]] = [1, 2, 0]
    X[5] = np.nan
    X[10] = X[3]
    names = np.array(["ant", "bee", HOSTILE, "</script>"])
    test = {"test_features": X[70:80], "test_labels": labels[70:80]}
    np.savez(tmp_path / "features.npz", features=X, labels=given, class_names=names, **test)
    return tmp_path / "features.npz"


def test_classes_too_small_to_judge_are_no_suspects(tmp_path):
    """A shop has thousands: there is something to decide only where another class fits better. Nothing is trained."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), (20, 20, 20, 1, 2, 1))
    means = 3 * np.eye(6, 12)
    X = (means[labels] + 0.2 * random.normal(size=(64, 12))).astype(np.float32)
    np.savez(tmp_path / "shop.npz", features=X, labels=np.where(np.arange(64) == 7, 2, labels))
    printed = run_command("audit", "shop.npz", "--out", "out", "--as-they-are")
    assert not (tmp_path / "out" / "run-0").exists()
    with np.load(tmp_path / "out" / "features.npz") as stored:
        assert stored["features"].shape == (64, 12)
    assert re.search(r"in classes of fewer than 3, not judged\W+4\b", printed.out)
    rows = csv_rows(tmp_path / "out" / "labels.csv")
    assert {row["verdict"] for row in rows[60:]} == {"not sure"}
    assert [row["sample"] for row in rows[:60] if row["verdict"] != "right"] == ["7"]
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "Classes of fewer than 3 samples" in page
    suspects = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["suspects"]
    likelier = {place for place in range(60, 64) if rows[place]["proposed"] != rows[place]["label"]}
    assert set(suspects) & set(range(60, 64)) == likelier < set(range(60, 64))


def test_where_no_class_can_be_judged_nothing_is_told_of_the_share(tmp_path):
    np.savez(tmp_path / "lone.npz", features=np.eye(6, 8, dtype=np.float32), labels=np.arange(6) // 2)
    printed = run_command("audit", "lone.npz", "--out", "out", "--as-they-are")
    told = "nothing can be told, as no class has 3 samples"
    assert "nothing can be told" in printed.out and "share is uncertain" not in printed.out
    assert told in (tmp_path / "out" / "audit.html").read_text()


def test_features_from_end_to_end(features, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr("robustdml.commands.audit.WIDE", 0.0)
    command = ("audit", features, "--out", out, "--epochs", "1")
    said = run_command(*command)
    assert "left out 1" in said.err and "5 (its features hold NaN" in said.err
    assert "give the file to --decisions" in said.out
    found = {int(row["sample"]): row for row in csv_rows(out / "labels.csv")}
    assert 5 not in found and len(found) == 119
    assert [place for place, row in found.items() if row["verdict"] == "wrong"] == [3, 40, 70]
    assert found[40]["proposed"] == "bee" and float(found[40]["probability"]) < 0.2
    assert found[3]["duplicate_group"] == found[10]["duplicate_group"] != ""
    # Embeddings to judge by start from the principal axes, by which the audit's figures were measured.
    assert load_embedder(out / "run-0").card.trained_by["config"]["start"] == "principal"
    with np.load(out / "features.npz") as stored:
        assert len(stored["features"]) == 119

    # What the page shows of names is text, as test_hostile_pages.py asserts, and its data are whole.
    page = (out / "audit.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert data["classes"] == ["ant", "bee", HOSTILE, "</script>"]
    assert {data["samples"][str(row)]["name"] for row in data["suspects"]} >= {"3", "40", "70"}
    assert [len(group) for group in data["groups"]] == [2]

    # The same audit again takes what is there; one of other data is refused.
    before = (out / "run-0" / "model.pt").stat().st_mtime_ns
    first = (out / "labels.csv").read_bytes()
    run_command(*command)
    assert (out / "run-0" / "model.pt").stat().st_mtime_ns == before and (out / "labels.csv").read_bytes() == first
    assert "other settings" in refused(*command, "--epochs", "2")

    # Correcting puts the three right, dropping leaves them out; a label that a person calls right stays.
    (tmp_path / "decisions.csv").write_text('sample,class,decision,label\n"40","","right",""\n')
    more = ("--use", "correct", "--confidence", "0.5", "--decisions", "decisions.csv")
    run_command("apply", out / "labels.csv", "--to", tmp_path / "clean.npz", *more)
    with np.load(tmp_path / "clean.npz") as clean:
        names = dict(zip(clean["paths"].tolist(), clean["class_names"][clean["labels"]].tolist(), strict=True))
        np.testing.assert_array_equal(clean["test_features"], np.load(features)["test_features"])
        assert set(clean["class_names"][clean["test_labels"]]) == {HOSTILE}
    assert names["3"] == "ant" and names["40"] == HOSTILE and names["70"] == HOSTILE
    run_command("apply", out / "labels.csv", "--to", tmp_path / "clean.csv")
    assert len(csv_rows(tmp_path / "clean.csv")) == 116

    # What a person has decided is believed, and told.
    kept = f'"2","","relabel","{found[2]["label"]}"'  # under its own name
    again = ('"3","","relabel","ant"', '"70","","drop",""', kept, '"1","","right",""', '"40","","right",""')
    (tmp_path / "decisions.csv").write_text("\n".join(("sample,class,decision,label", *again, "")))
    said = run_command(*command, "--decisions", "decisions.csv").out
    assert "5, of them 2 wrong" in said and "give the file to --decisions" not in said
    found = {int(row["sample"]): row for row in csv_rows(out / "labels.csv")}
    assert [float(found[row]["probability"]) for row in (3, 70, 2, 40)] == [0, 0, 1, 1]
    assert found[40]["verdict"] == "right" and found[40]["proposed"] == found[40]["label"]
    (tmp_path / "decisions.csv").write_text('sample,class,decision,label\n"999","","right",""\n')
    said = refused("audit", features, "--out", "new", "--epochs", "1", "--decisions", "decisions.csv")
    assert "'999' is not in this audit" in said and not (tmp_path / "new" / "run-0").exists()

    # Rows in another order are others.
    content = dict(np.load(features))
    np.savez(features, **{**content, "features": content["features"][::-1]})
    assert "has changed since the audit" in refused("apply", out / "labels.csv", "--to", tmp_path / "again.npz")


def test_runs_judge_together_and_an_interrupted_audit_goes_on(features, tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = ("audit", features, "--epochs", "1", "--runs", "2", "--out")
    run_command(*command, whole)
    real = learning.train

    def interrupted(config, *args, **kwargs):
        if config.seed == 1:
            raise KeyboardInterrupt
        return real(config, *args, **kwargs)

    monkeypatch.setattr(learning, "train", interrupted)
    run_command(*command, broken, status=130)
    monkeypatch.setattr(learning, "train", real)
    run_command(*command, broken)
    assert (whole / "labels.csv").read_bytes() == (broken / "labels.csv").read_bytes()
    with np.load(whole / "features.npz") as stored:
        assert stored["features"].shape[1] == 2 * 64


@pytest.fixture
def photographs(tmp_path):
    """Class folders of colours, of which one image is in the wrong folder and one cannot be read."""
    images = save_photos(tmp_path / "images", classes=3, images=16, size=(24, 24))
    (images / "class 0" / "7.png").rename(images / "class 2" / "from-0.png")
    (images / "class 1" / "broken.jpg").write_bytes(b"no image")
    return images


@pytest.fixture
def colours(tmp_path):
    """Options of a backbone of one's own, in the current folder."""
    (tmp_path / "colours.py").write_text(
        "import torch\n\n\nclass Colours(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x.mean((2, 3)) - 0.3\n"
    )
    return "--epochs", "1", "--image-size", "24", "--backbone", "colours:Colours"


def test_folder_of_images(photographs, colours, tmp_path):
    out = tmp_path / "out"
    assert "broken.jpg" in run_command("audit", photographs, "--out", out, *colours).err
    found = {Path(row["sample"]).name: row for row in csv_rows(out / "labels.csv") if row["verdict"] != "right"}
    assert found["from-0.png"]["proposed"] == "class 0"
    assert "data:image/jpeg" in (out / "audit.html").read_text()

    clean = tmp_path / "clean"
    run_command("apply", out / "labels.csv", "--to", clean, "--use", "correct", "--confidence", "0")
    assert (clean / "class 0" / "from-0.png").is_symlink() and not (clean / "class 2" / "from-0.png").exists()
    assert "is there already" in refused("apply", out / "labels.csv", "--to", clean)


def test_a_list_of_images_in_parquet(photographs, colours, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra lists has it")
    import pyarrow.parquet as parquet

    files = [str(file.relative_to(tmp_path)) for file in sorted(photographs.rglob("*.png"))]
    labels = [index % 2 for index in range(len(files))]
    table = {"path": [*files, files[0], "images/missing.png"], "label": [*labels, None, 1]}
    parquet.write_table(pyarrow.table(table), tmp_path / "list.parquet")
    said = run_command("audit", "list.parquet", "--out", "out", *colours).err
    assert "left out 2" in said and "no label" in said and "missing.png" in said
    found = csv_rows(tmp_path / "out" / "labels.csv")
    assert len(found) == 48 and {row["label"] for row in found} == {"0", "1"}


def test_what_becomes_of_a_label():
    findings = [
        finding("a"),
        Finding("b", "x", 0.5, "y", 0.5, "not sure", -1),
        Finding("c", "x", 0.02, "y", 0.97, "wrong", -1),
        Finding("d", "x", 0.2, "y", 0.6, "wrong", -1),
        Finding("e", "x", 0.1, "x", 0.1, "belongs to no class", -1),
    ]

    def kept(*args, **kwargs):
        return {one.sample: one.label for one in clean_labels(findings, *args, **kwargs).values()}

    assert kept("drop") == {"a": "x", "b": "x"}
    assert kept("correct") == {"a": "x", "b": "x", "c": "y"}
    decided = {"a": ("drop", ""), "b": ("relabel", "y"), "c": ("no class", ""), "d": ("right", "")}
    assert kept("drop", decisions=Decisions(decided | {"e": ("relabel", "z")})) == {"b": "y", "d": "x", "e": "z"}
    with pytest.raises(UsageError, match="confidence=2"):
        kept("drop", 2)
    with pytest.raises(UsageError, match="use of labels 'weigh'"):
        kept("weigh")


def decide(tmp_path, findings, *lines):
    """Decisions from the lines of a file."""
    (tmp_path / "decisions.csv").write_text("\n".join(("sample,class,decision,label", *lines, "")))
    names = [one.sample for one in findings], [one.label for one in findings]
    decisions = read_decisions([tmp_path / "decisions.csv"], *names)
    return {one.sample: one.label for one in clean_labels(findings, "drop", decisions=decisions).values()}


def test_classes_are_merged_and_split(tmp_path):
    """x is two, of which the second half becomes a class; y and z are one, and so are z and w."""
    findings = [finding(f"x{half}", half=half) for half in (1, 2)]
    findings += [finding(name, name) for name in ("y", "z", "w", "x (2)")]
    findings += [Finding("moved", "y", 0.1, "x", 0.9, "wrong", -1, "", 2), findings[0]]
    findings[-1] = Finding("from x", "x", 0.5, "y", 0.5, "not sure", -1, "", 1)
    merged = decide(tmp_path, findings, ",z,merge,y", ",w,merge,z", ",y,merge,w")
    assert {merged[name] for name in ("y", "z", "w")} == {"y"} and merged["x2"] == "x"
    apart = decide(tmp_path, findings, ",x,split,", "moved,,relabel,x", "w,,drop,", "w,,right,")
    # Of a sample that comes into a class that is split the half is not known: it is left out.
    assert apart == {"x1": "x", "x2": "x (3)", "y": "y", "z": "z", "x (2)": "x (2)", "from x": "x"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a,,accept,", "line 2: decision 'accept': expected one of right, relabel, no class, wrong, drop, copy"),
        (",x,drop,", "decision 'drop': expected one of merge, split"),
        ("b,,drop,", "sample 'b' is not in this audit"),
        ("a,,relabel,why", "class 'why' is not in this audit"),
        (",x,merge,", "class '' is not in this audit"),
    ],
)
def test_decisions_that_are_none(tmp_path, line, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        decide(tmp_path, [finding("a")], line)


def test_classes_in_doubt():
    """Class 8 is drawn from class 0, and class 3 from two; of features that say nothing nothing is said."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(9), 24)
    drawn = np.where(labels == 8, 0, labels)
    drawn[(labels == 3) & (np.arange(len(labels)) % 2 == 0)] = 8
    X = (3 * np.eye(9, 16)[drawn] + 0.5 * random.normal(size=(len(labels), 16))).astype(np.float32)
    wrong = random.random(len(labels)) < 0.1
    given = np.where(wrong, random.integers(0, 9, len(labels)), labels)
    found = doubt_classes(X, given, 9, X)
    assert [pair[:2] for pair in found.one] == [(0, 8)] and [label for label, _ in found.two] == [3]
    right = (given == 3) & (labels == 3)
    assert len({*zip(found.halves[right].tolist(), drawn[right].tolist(), strict=True)}) == 2
    assert not found.halves[given != 3].any()
    # Features that have not learnt from the labels tell them apart: they look alike, and are two.
    stroke = np.where((drawn == 0) & (given == 8), 2.0, 0.0)[:, None]
    assert not doubt_classes(X, given, 9, np.concatenate([X, stroke], 1)).one
    noise = random.normal(size=X.shape).astype(np.float32)
    nothing = doubt_classes(noise, given, 9, noise)
    assert nothing.one == nothing.two == []


def test_copies_in_train_and_test():
    """The same picture of another contrast in the test part; the same bytes in one class, and under another label."""
    images = np.random.default_rng(0).integers(0, 255, (40, 3, 24, 24)).astype(np.uint8)
    images[30] = images[3] // 2 + 20
    images[11] = images[9]
    images[26] = images[25] = images[7]
    parts = tuple("test" if row >= 28 else "train" for row in range(40))
    labels = np.arange(40) % 2
    samples = Samples(images, labels, ("a", "b"), parts=parts)
    labels[30] = labels[3]
    copies = find_copies(samples)
    groups = {tuple(np.flatnonzero(copies == group)) for group in set(copies[copies >= 0].tolist())}
    assert groups == {(3, 30), (9, 11), (7, 25, 26)}
    found = copies_by_kind(samples, copies)
    assert found["Copies under different labels"] == [{"b": [7, 25], "a": [26]}]
    assert found["Images in both train and test"] == [{"train": [3], "test": [30]}]
    assert found["Copies in one class"] == [{"": [9, 11]}]
    assert set(range(40)) - set(trained_on(copies, labels).tolist()) == {30, 11, 7, 25, 26}


def test_what_apply_would_cost_is_told():
    right = [Finding(f"r{row}", "x", 1.0, "x", 1.0, "right", -1) for row in range(60)]
    wrong = [Finding(f"w{row}", "x", 0.4, "tiny", 0.6, "wrong", -1) for row in range(20)]
    told = " ".join(outlook([*right, *wrong, Finding("t", "tiny", 1.0, "tiny", 1.0, "right", -1)]))
    assert "leave out 20, of which about 8 have a right label" in told and "Advice: decide" in told
    assert "Class 'tiny' of 1 samples receives 20 of 20 proposals" in told
    assert outlook(right) == ["apply would keep all 60 samples."]


def test_apply_asks_before_it_leaves_out_much(tmp_path):
    right = "".join(f"r{row},x,1.0,x,1.0,right,,,,{row + 5}\n" for row in range(6))
    wrong = "".join(f"w{row},x,0.25,y,0.7,wrong,,,,{row + 1}\n" for row in range(4))
    head = "sample,label,probability,proposed,proposed_probability,verdict,duplicate_group,part,half,rank\n"
    (tmp_path / "labels.csv").write_text(head + right + wrong)
    said = refused("apply", "labels.csv", "--to", "clean.csv")
    assert "4 leave, of which about 1 have a right label" in said and "--yes" in said
    assert not (tmp_path / "clean.csv").exists()
    told = json.loads(run_command("apply", "labels.csv", "--to", "clean.csv", "--yes", "--json").out)
    assert (told["kept"], told["left out"], told["left out, expected right"]) == (6, 4, 1.0)


def test_the_list_keeps_its_order(tmp_path):
    """Probabilities below 0.00005 differ, and so do their ranks."""
    X = np.random.default_rng(0).normal(size=(60, 8)) * 0.1 + 3 * np.eye(6, 8)[np.arange(60) % 6]
    labels = np.arange(60) % 6
    labels[:8] = (labels[:8] + 1) % 6
    np.savez(tmp_path / "features.npz", features=X.astype(np.float32), labels=labels)
    told = json.loads(run_command("audit", "features.npz", "--out", "out", "--as-they-are", "--json").out)
    rows = csv_rows(tmp_path / "out" / "labels.csv")
    assert told["samples"] == 60 and told["verdicts"]["right"] == sum(row["verdict"] == "right" for row in rows)
    worst = sorted(rows, key=lambda row: int(row["rank"]))[:8]
    assert {int(row["sample"]) for row in worst} == set(range(8))
    assert len({row["probability"] for row in worst}) == 8
    assert [float(row["probability"]) for row in worst] == sorted(float(row["probability"]) for row in worst)


def test_more_questions_than_are_asked_are_told():
    counts = [Section("", "", [Question("", [], "", [])] * number).count for number in (499, 500)]
    assert counts == ["499", "500 or more"]


def test_labels_that_are_no_findings(tmp_path):
    head = "sample,label,probability,proposed,proposed_probability,verdict,duplicate_group,part,half,rank\n"
    for text, words in (
        (head + "a,x,1,x,1,maybe,,,,\n", "line 2: verdict"),
        (head + "a,x,?,x,1,right,,,,\n", "line 2"),
        (head + "a,x,1,x,1,right,,../up,,\n", "line 2: part '../up'; expected train or test"),
        ("a\n", "no column"),
    ):
        (tmp_path / "labels.csv").write_text(text)
        with pytest.raises(UsageError, match=words):
            read_findings(tmp_path / "labels.csv")
