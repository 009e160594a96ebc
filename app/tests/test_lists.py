"""Lists of images, as a shop keeps them: labels as texts, classes of one image, semicolons, what is missing."""

import csv

import numpy as np
import pytest
from PIL import Image

from robustdml.data import load_data
from robustdml.data.folders import read_list
from robustdml.errors import UsageError

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
        writer.writerow(["sku", "path", "label"])
        for image in sorted(photos.rglob("*.png")):
            writer.writerow([1, image if absolute else image.relative_to(path.parent), image.parent.name])
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_list_is_the_folder_that_it_lists(photos, delimiter):
    path = write_list(photos, delimiter, absolute=delimiter == ";", encoding="utf-8-sig")
    listed, folder = (load_data(str(source), image_size=6) for source in (path, photos))
    for one, other in ((listed.train, folder.train), (listed.test, folder.test)):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.labels, other.labels)
        assert (one.class_names, one.names()) == (other.class_names, other.names())
    assert {*listed.train.class_names, *listed.test.class_names} == {*CLASSES}


def test_what_is_missing_is_named(photos):
    path = write_list(photos)
    (photos / "007" / "0, a.png").unlink()
    with pytest.raises(UsageError, match=r"1 of 21 images are not there: .*007/0, a.png .*Paths are relative to"):
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
