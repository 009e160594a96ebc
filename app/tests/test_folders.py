import csv

import numpy as np
import pytest
from PIL import Image

from robustdml.data import load_data
from robustdml.data.folders import read_list
from robustdml.errors import UsageError


def save(path, colour, size=(20, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "birds"
    for number, name in enumerate(("auk", "bee eater", "crane", "dodo")):
        for image in range(3):
            save(root / name / f"{image}.png", (60 * number, image, 0))
    save(root / "auk" / "deeper" / "grey.JPG", (7, 7, 7), size=(64, 16), mode="L")
    (root / "notes.txt").write_text("not a class")
    (root / "auk" / "readme.md").write_text("not an image")
    (root / ".git" / "x").mkdir(parents=True)
    save(root / ".git" / "x" / "hidden.png", (1, 1, 1))
    (root / "empty class").mkdir()
    return root


def test_splits_by_class(folder):
    data = load_data(str(folder), image_size=8)
    assert data.name == "birds"
    names = set(data.train.class_names) | set(data.test.class_names)
    assert names == {"auk", "bee eater", "crane", "dodo"}
    assert data.train.num_classes == data.test.num_classes == 2
    for split in (data.train, data.test):
        assert split.inputs.shape == (len(split), 3, 8, 8)
        assert split.inputs.dtype == np.uint8
        expected = {"auk": 0, "bee eater": 60, "crane": 120, "dodo": 180}
        for image, label in zip(split.inputs, split.labels, strict=True):
            red = int(image[0, 4, 4])
            assert red in (expected[split.class_names[label]], 7)
    assert len(data.train) + len(data.test) == 13


def test_fraction_and_seed_choose_the_classes(folder):
    assert load_data(str(folder), image_size=4, test_fraction=0.01).test.num_classes == 1
    assert load_data(str(folder), image_size=4, test_fraction=0.99).train.num_classes == 1
    whole = load_data(str(folder), image_size=4, test_fraction=0)
    assert whole.train.num_classes == 4 and whole.test.class_names == whole.train.class_names
    choices = {load_data(str(folder), image_size=4, split_seed=seed).test.class_names for seed in range(8)}
    assert len(choices) > 1
    assert load_data(str(folder), image_size=4, split_seed=3).test.class_names in choices


def test_train_and_test_folders(tmp_path):
    save(tmp_path / "train" / "a" / "1.png", (1, 0, 0))
    save(tmp_path / "test" / "b" / "1.png", (2, 0, 0))
    save(tmp_path / "test" / "c" / "1.png", (3, 0, 0))
    data = load_data(str(tmp_path), image_size=5)
    assert data.train.class_names == ("a",)
    assert data.test.class_names == ("b", "c")
    assert data.test.inputs[:][:, 0, 0, 0].tolist() == [2, 3]


def test_unusual_image_kinds(tmp_path):
    for number, mode in enumerate(("1", "L", "P", "RGB", "LA", "RGBA", "CMYK", "I;16")):
        suffix = "tif" if mode == "CMYK" else "png"
        path = tmp_path / str(number % 2) / f"{number}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        Image.new(mode, (3, 70)).save(path)
    data = load_data(str(tmp_path), image_size=16)
    assert len(data.train) + len(data.test) == 8


# Labels as a shop has them.
CLASSES = ("007", "1e5", "Stuhl, 4-beinig", "chaise; longue", "日本", "nan")


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """One image of the first class, two of the next, …"""
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for number, name in enumerate(CLASSES, 1):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(number):
            pixels = random.integers(0, 255, (9, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{image}, a.png")
    return tmp_path / "photos"


def write_list(photos, delimiter=",", name="list.csv", absolute=False, encoding="utf-8"):
    """All images, class by class, relative to the list unless it says otherwise."""
    path = photos.parent / name
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["path", "label", "sku"])
        for image in sorted(photos.rglob("*.png")):
            writer.writerow([image if absolute else image.relative_to(path.parent), image.parent.name, 1])
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_list_is_the_folder_that_it_lists(photos, delimiter):
    path = write_list(photos, delimiter, absolute=delimiter == ";", encoding="utf-8-sig")
    listed, folder = (load_data(str(source), image_size=6) for source in (path, photos))
    for one, other in ((listed.train, folder.train), (listed.test, folder.test)):
        np.testing.assert_array_equal(one.inputs[:], other.inputs[:])
        np.testing.assert_array_equal(one.labels, other.labels)
        assert (one.class_names, one.names()) == (other.class_names, other.names())
    assert {*listed.train.class_names, *listed.test.class_names} == {*CLASSES}


def test_what_is_missing_is_named(photos):
    path = write_list(photos)
    (photos / "007" / "0, a.png").unlink()
    with pytest.raises(UsageError, match=r"1 images cannot be read; .*its folder\): .*007/0, a.png \(No such"):
        load_data(str(path))
    path.write_text("path,label\na.png,\n,b\nc.png,d\n")
    with pytest.raises(
        UsageError, match=r"2 rows are not whole; .*row 1 of list.csv \(no label\); row 2 .*\(no path\)"
    ):
        load_data(str(path))
    assert read_list(path).class_names == ("d",)
    path.write_text("file,class\na.png,b\n")
    with pytest.raises(UsageError, match=r"no column 'path'; found file, class\. Call that of the images path"):
        load_data(str(path))
