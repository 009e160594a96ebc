"""Folders and lists of photographs, which stay in their files: what is broken is found once."""

import csv

import numpy as np
import pytest
from PIL import Image

from app.tests.conftest import SMALL, refused, run_command, save_photos
from robustdml.data import load_data
from robustdml.data.image_files import ImageFiles, batches_of
from robustdml.data.images import decode
from robustdml.data.lists import read_list
from robustdml.errors import UsageError

COUNT, SIDE = 200, 32


@pytest.fixture
def drawn(tmp_path):
    return save_photos(tmp_path / "drawn", 10, COUNT // 10, (48, 40))


def test_indexing_decodes_what_is_asked_for(drawn):
    files = sorted(drawn.rglob("*.png"))[:100]
    inputs = ImageFiles(files, SIDE)
    expected = np.stack([decode(file, SIDE) for file in files])
    assert inputs.shape == expected.shape and inputs.dtype == expected.dtype and len(inputs) == 100
    rows = np.array([7, 3, 3, 99])
    for key in (slice(5, 9), slice(90, 200), rows, np.array([], int)):
        np.testing.assert_array_equal(inputs[key], expected[key])
    np.testing.assert_array_equal(inputs[-1], expected[-1])
    np.testing.assert_array_equal(inputs.take(rows)[1:], expected[rows][1:])
    chosen = [rows, slice(0, 2), slice(98, 120)]
    for given, same in zip(batches_of(inputs, chosen), batches_of(expected, chosen), strict=True):
        np.testing.assert_array_equal(given, same)
    files[3].unlink()
    with pytest.raises(UsageError, match=r"1 image can be read no longer: .*No such file"):
        inputs[2:5]


def test_large_jpeg_files_unpack_smaller_and_look_the_same(tmp_path):
    random = np.random.default_rng(0)
    smooth = Image.fromarray(random.integers(0, 255, (6, 8, 3), np.uint8)).resize((800, 600), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.jpg", quality=95)
    smooth.save(tmp_path / "a.png")
    fast, exact = (decode(tmp_path / name, SIDE).astype(float) for name in ("a.jpg", "a.png"))
    assert np.abs(fast - exact).mean() < 1 and np.abs(fast - exact).max() < 8


def test_training_and_evaluation_leave_out_what_is_broken(photos, tmp_path):
    (photos / "class 2" / "3.png").write_text("no image")
    Image.new("RGB", (9, 9)).save(photos / "loose.png")
    command = ["train", "--data", photos, *SMALL, "--out", "run"]
    assert "1 image cannot be read; repair or remove them, or skip broken ones (--skip-broken): " in refused(*command)
    said = run_command(*command, "--skip-broken").err
    assert "left out 2: " in said and "loose.png (in no class folder)" in said and "3.png (cannot identify" in said
    assert "Left out 2: " in (tmp_path / "run" / "report.html").read_text()
    # What the run was told stands in its settings, and a resumed one does the same.
    assert "skip_broken: true" in (tmp_path / "run" / "config.yaml").read_text()
    run_command(*command, "--epochs", "2", "--resume")
    assert "left out 2: " in run_command("evaluate", "run", "--data", photos, "--skip-broken").err


def paint(path, colour, size=(20, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


# Labels as a shop has them.
CLASSES = ("007", "1e5", "Stuhl, 4-beinig", "chaise; longue", "nan", "日本")


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "shop"
    for number, name in enumerate(CLASSES):
        for image in range(3):
            paint(root / name / f"{image}, a.png", (40 * number, image, 0))
    paint(root / "007" / "deeper" / "grey.JPG", (7, 7, 7), size=(64, 16), mode="L")
    (root / "notes.txt").write_text("not a class")
    (root / "007" / "readme.md").write_text("not an image")
    paint(root / ".git" / "x" / "hidden.png", (1, 1, 1))
    (root / "empty class").mkdir()
    return root


def test_splits_by_class(folder):
    data = load_data(str(folder), image_size=8)
    assert data.name == "shop"
    assert {*data.train.class_names, *data.test.class_names} == {*CLASSES}
    assert data.train.num_classes == data.test.num_classes == 3
    for split in (data.train, data.test):
        assert split.inputs.shape == (len(split), 3, 8, 8)
        assert split.inputs.dtype == np.uint8
        for image, label in zip(split.inputs, split.labels, strict=True):
            assert int(image[0, 4, 4]) in (40 * CLASSES.index(split.class_names[label]), 7)
    assert len(data.train) + len(data.test) == 19


def test_fraction_and_seed_choose_the_classes(folder):
    assert load_data(str(folder), image_size=4, test_fraction=0.01).test.num_classes == 1
    assert load_data(str(folder), image_size=4, test_fraction=0.99).train.num_classes == 1
    whole = load_data(str(folder), image_size=4, test_fraction=0)
    assert whole.train.num_classes == 6 and whole.test.class_names == whole.train.class_names
    choices = {load_data(str(folder), image_size=4, split_seed=seed).test.class_names for seed in range(8)}
    assert len(choices) > 1
    assert load_data(str(folder), image_size=4, split_seed=3).test.class_names in choices


def test_train_and_test_folders(tmp_path):
    root = tmp_path / "images"
    paint(root / "train" / "a" / "1.png", (1, 0, 0))
    paint(root / "test" / "b" / "1.png", (2, 0, 0))
    paint(root / "test" / "c" / "1.png", (3, 0, 0))
    data = load_data(str(root), image_size=5)
    assert data.train.class_names == ("a",)
    assert data.test.class_names == ("b", "c")
    assert data.test.inputs[:][:, 0, 0, 0].tolist() == [2, 3] and data.left_out == ()
    (root / "valid").mkdir()
    assert load_data(str(root), image_size=5).left_out == (f"{root / 'valid'} (beside train and test)",)
    (root / "test").rename(root / "Val")
    with pytest.raises(UsageError, match="look like parts, not classes: Val, train, valid; call them train and test"):
        load_data(str(root), image_size=5)


def test_unusual_image_kinds(tmp_path):
    for number, mode in enumerate(("1", "L", "P", "RGB", "LA", "RGBA", "CMYK", "I;16")):
        suffix = "tif" if mode == "CMYK" else "png"
        path = tmp_path / str(number % 2) / f"{number}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        Image.new(mode, (3, 70)).save(path)
    data = load_data(str(tmp_path), image_size=16)
    assert len(data.train) + len(data.test) == 8


def test_deep_and_transparent_images_are_what_they_show(tmp_path):
    ramp = np.arange(0, 2**16, 64, dtype=np.uint16).reshape(SIDE, SIDE)
    clear = Image.new("RGBA", (SIDE, SIDE))
    clear.paste("black", (0, 0, 16, SIDE))
    kinds = {
        "deep.png": Image.fromarray(ramp),
        "8.png": Image.fromarray((ramp >> 8).astype(np.uint8)),
        "clear.png": clear,
    }
    for name, image in {**kinds, "32.tif": Image.fromarray(ramp.astype(np.float32))}.items():
        image.save(tmp_path / name)
    deep, flat, pixels, refusal = (decode(tmp_path / name, SIDE) for name in (*kinds, "32.tif"))
    np.testing.assert_array_equal(deep, flat)
    assert (pixels[:, :, :16] == 0).all() and (pixels[:, :, 16:] == 255).all()
    assert "pixels have 32 bits" in refusal


def write_list(root, delimiter=",", absolute=False):
    """All images, class by class, relative to the list unless it says otherwise."""
    path = root.parent / "list.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["path", "label", "sku"])
        for image in sorted(root.glob("[!.]*/**/*.[pJ]*")):
            label = image.relative_to(root).parts[0]
            writer.writerow([image if absolute else image.relative_to(path.parent), label, 1])
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_list_is_the_folder_that_it_lists(folder, delimiter):
    path = write_list(folder, delimiter, absolute=delimiter == ";")
    listed, whole = (load_data(str(source), image_size=6) for source in (path, folder))
    for one, other in ((listed.train, whole.train), (listed.test, whole.test)):
        np.testing.assert_array_equal(one.inputs[:], other.inputs[:])
        np.testing.assert_array_equal(one.labels, other.labels)
        assert (one.class_names, one.names()) == (other.class_names, other.names())


def test_a_list_may_name_its_parts(tmp_path):
    images = sorted(save_photos(tmp_path / "drawn", 3, 2, (8, 8)).rglob("*.png"))
    rows = [f"{image},{image.parent.name},{'test' if '2' in image.parent.name else 'train'}" for image in images]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,part", *rows]))
    data = load_data(str(tmp_path / "list.csv"), image_size=6)
    assert data.train.class_names == ("class 0", "class 1") and data.test.class_names == ("class 2",)
    (tmp_path / "list.csv").write_text("\n".join(["path,label,part", *rows[1:], f"{images[0]},class 0,val"]))
    with pytest.raises(UsageError, match="column part holds 'train'; 'test'; 'val'; expected train"):
        load_data(str(tmp_path / "list.csv"), image_size=6)


def test_names_in_a_list_are_kept_as_they_are(tmp_path):
    (tmp_path / "list.csv").write_text("path,label\n a.png, cat\nb.png,cat\nc.png,  \n")
    listed = read_list(tmp_path / "list.csv")
    assert listed.class_names == (" cat", "cat") and listed.files == [tmp_path / " a.png", tmp_path / "b.png"]
    assert listed.left_out == ("row 3 of list.csv (no label)",)


def test_a_list_names_a_file_once(tmp_path):
    (tmp_path / "list.csv").write_text("path,label\na.png,x\nb.png,y\n./a.png,y\n")
    with pytest.raises(UsageError, match=r"rows 1 and 3 are of the same file, .*/a\.png; keep one"):
        read_list(tmp_path / "list.csv")


def test_what_is_missing_is_named(folder):
    path = write_list(folder)
    (folder / "007" / "0, a.png").unlink()
    with pytest.raises(UsageError, match=r"1 image cannot be read; .*its folder\): .*007/0, a.png \(No such"):
        load_data(str(path))
    path.write_text("path,label\na.png,\n,b\nc.png,d\n")
    with pytest.raises(UsageError, match=r"2 rows without path.*; .*1 of list.csv \(no label\); row 2 .*\(no path\)"):
        load_data(str(path))
    assert read_list(path).class_names == ("d",)


def gradient(bits):
    """A picture that is dark on the left and light on the right, of numbers of so many bits."""
    return np.tile(np.linspace(0, 2**bits - 1, SIDE).astype(np.uint16), (SIDE, 1))


def tiff(path, planes, white_is_zero=False, bits=16):
    """Write a file of TIFF with a plane a channel, byte by byte: Pillow writes no such files."""
    data = b"".join(plane.astype(f"<u{bits // 8}").tobytes() for plane in planes)
    count, size = len(planes), SIDE * SIDE * bits // 8
    show = 2 if count > 1 else 1 - white_is_zero
    tags = [(256, 4, [SIDE]), (257, 4, [SIDE]), (258, 3, [bits] * count), (259, 3, [1]), (262, 3, [show])]
    tags += [(273, 4, None), (277, 3, [count]), (278, 4, [SIDE]), (279, 4, [size] * count), (284, 3, [1 + (count > 1)])]
    extra, entries = b"", b""
    after = 8 + 2 + 12 * len(tags) + 4
    room = sum(len(values or planes) * (4 if kind == 4 else 2) for _, kind, values in tags if len(values or planes) > 1)
    for number, kind, values in tags:
        values = [after + room + size * plane for plane in range(count)] if values is None else values
        packed = b"".join(value.to_bytes(4 if kind == 4 else 2, "little") for value in values)
        place = packed.ljust(4, b"\0")
        if len(packed) > 4:
            place, extra = (after + len(extra)).to_bytes(4, "little"), extra + packed
        entries += (
            b"".join(one.to_bytes(size, "little") for one, size in ((number, 2), (kind, 2), (len(values), 4))) + place
        )
    head = b"II*\0" + (8).to_bytes(4, "little") + len(tags).to_bytes(2, "little")
    path.write_bytes(head + entries + bytes(4) + extra.ljust(room, b"\0") + data)
    return path


def test_deep_pictures_of_cameras_and_scanners_look_as_they_do(tmp_path):
    expected = gradient(8).astype(int)
    Image.fromarray(gradient(12)).save(tmp_path / "12 in 16.png")
    Image.fromarray(gradient(12)).save(tmp_path / "12 in 16.tif")
    (tmp_path / "16.pgm").write_bytes(f"P5 {SIDE} {SIDE} 65535\n".encode() + gradient(16).astype(">u2").tobytes())
    tiff(tmp_path / "white is 0.tif", [2**16 - 1 - gradient(16)], white_is_zero=True)
    tiff(tmp_path / "white is 0, 8.tif", [255 - gradient(8)], white_is_zero=True, bits=8)
    tiff(tmp_path / "planes of 8.tif", [gradient(8)] * 3, bits=8)
    for name in ("12 in 16.png", "12 in 16.tif", "16.pgm", "white is 0.tif", "white is 0, 8.tif", "planes of 8.tif"):
        pixels = decode(tmp_path / name, SIDE)
        assert not isinstance(pixels, str) and np.abs(pixels[0] - expected).max() <= 1, name
    planes = decode(tiff(tmp_path / "planes.tif", [gradient(16)] * 3), SIDE)
    assert planes.endswith("(its channels of 16 bits lie one behind the other, which is not read; save it with 8 bits)")


def test_a_broken_image_is_named_once_with_its_reason(tmp_path):
    (tmp_path / "a.jpg").write_text("no image")
    (tmp_path / "b.jpg").write_bytes(b"")
    told = [decode(tmp_path / name, 8) for name in ("a.jpg", "b.jpg")]
    assert told == [f"{tmp_path}/a.jpg (cannot identify image file)", f"{tmp_path}/b.jpg (empty, 0 bytes)"]
