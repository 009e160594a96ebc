"""Photographs stay in their files: what is broken is found once, and features of the others are stored once."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from app.tests.conftest import refused, save_photos
from robustdml.cli import main
from robustdml.data import image_files, images, load_data
from robustdml.data.image_files import ImageFiles, batches_of, find_broken, rows_of
from robustdml.data.images import decode
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import Origin
from robustdml.networks.stored_features import map_features, store_split
from robustdml.progress import silent

CPU = torch.device("cpu")
COUNT, SIDE = 2000, 32


@pytest.fixture
def drawn(tmp_path):
    """JPEG files of ten classes, of which two are broken."""
    random = np.random.default_rng(0)
    for label, colour in enumerate(random.integers(40, 200, (10, 3))):
        (tmp_path / "drawn" / f"class {label}").mkdir(parents=True)
        for number in range(label, COUNT, 10):
            file = tmp_path / "drawn" / f"class {label}" / f"{number:04}.jpg"
            if number >= 100:
                shutil.copy(file.with_name(f"{number % 100:04}.jpg"), file)
                continue
            pixels = (random.normal(size=(48, 40, 3)) * 12 + colour).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(file)
    return tmp_path / "drawn"


def break_two(drawn):
    half = drawn / "class 3" / "0013.jpg"
    half.write_bytes(half.read_bytes()[:400])
    (drawn / "class 4" / "0004.jpg").write_text("no image")


def test_indexing_decodes_what_is_asked_for(drawn):
    files = sorted(drawn.rglob("*.jpg"))[:100]
    inputs = ImageFiles(files, SIDE)
    expected = np.stack([decode(file, SIDE) for file in files])
    assert inputs.shape == expected.shape and inputs.dtype == expected.dtype and len(inputs) == 100
    rows = np.array([7, 3, 3, 99])
    for key in (slice(5, 9), slice(90, 200), rows, np.array([], int)):
        np.testing.assert_array_equal(inputs[key], expected[key])
    np.testing.assert_array_equal(inputs[-1], expected[-1])
    np.testing.assert_array_equal(rows_of(inputs, rows)[1:], expected[rows][1:])
    chosen = [rows, slice(0, 2), slice(98, 120)]
    for given, same in zip(batches_of(inputs, chosen), batches_of(expected, chosen), strict=True):
        np.testing.assert_array_equal(given, same)
    files[3].unlink()
    with pytest.raises(UsageError, match=r"1 images can be read no longer: .*No such file"):
        inputs[2:5]


def test_large_jpeg_files_unpack_smaller_and_look_the_same(tmp_path):
    random = np.random.default_rng(0)
    smooth = Image.fromarray(random.integers(0, 255, (6, 8, 3), np.uint8)).resize((800, 600), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.jpg", quality=95)
    smooth.save(tmp_path / "a.png")
    fast, exact = (decode(tmp_path / name, SIDE).astype(float) for name in ("a.jpg", "a.png"))
    assert np.abs(fast - exact).mean() < 1 and np.abs(fast - exact).max() < 8


def test_a_check_goes_on_and_is_made_once(drawn, own_cache, monkeypatch):
    break_two(drawn)
    files, reports = sorted(drawn.rglob("*.jpg")), []
    monkeypatch.setattr(image_files, "_BLOCK", 300)

    def interrupt(what, done, total):
        reports.append((done, total))
        if done == 1200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_broken(files, interrupt)
    (note,) = own_cache.rglob("*.json")
    assert json.loads(note.read_text())["done"] == 1200
    looked = []
    monkeypatch.setattr(images, "decode", lambda file, *rest: looked.append(file) or decode(file, *rest))
    broken = find_broken(files, silent)
    assert [files[row].name for row in broken] == ["0013.jpg", "0004.jpg"] and len(looked) == COUNT - 1200
    assert find_broken(files, silent) == broken and len(looked) == COUNT - 1200
    os.utime(files[0], (1, 1))
    assert find_broken(files, silent) == broken and len(looked) == 2 * COUNT - 1200


def small_network():
    return torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten())


def store(drawn, on_progress=silent):
    origin = Origin("small", small_network(), (3, SIDE, SIDE))
    return map_features(store_split(load_data(str(drawn), image_size=SIDE).train, origin, CPU, on_progress))


def test_features_are_half_as_large_and_nothing_else_is_kept(drawn, own_cache):
    data, made = load_data(str(drawn), image_size=SIDE), store(drawn)
    assert made.dtype == np.float16 and made.shape == (len(data.train), 192)
    exact = small_network()(torch.from_numpy(data.train.inputs[:50]).float() / 255).numpy()
    np.testing.assert_allclose(made[:50], exact, rtol=1e-3, atol=1e-3)
    kept = {file.suffix: file.stat().st_size for file in own_cache.rglob("*") if file.is_file() and file.stat().st_size}
    assert set(kept) == {".npy", ".json"} and kept[".json"] < 100
    for value in (1e6, 1e-6):
        origin = Origin(
            "scaled", torch.nn.Sequential(small_network(), torch.nn.Hardtanh(value, 2 * value)), (3, SIDE, SIDE)
        )
        with pytest.raises(UsageError, match="16 bits hold"):
            store_split(data.train, origin, CPU)


def test_training_and_audit_leave_out_what_is_broken(tmp_path, capsys):
    photos = save_photos(tmp_path / "photos", 6, 8, (30, 40))
    (photos / "class 2" / "3.png").write_text("no image")
    Image.new("RGB", (9, 9)).save(photos / "loose.png")
    command = ["train", "--data", str(photos), "--image-size", "24", "--device", "cpu", "--epochs", "1"]
    command += ["--backbone", "untrained", "--finetune", "--method", "contrastive", "--batch-size", "8", "--out", "run"]
    assert "1 images cannot be read; repair or remove them, or skip broken ones" in refused(capsys, *command)
    assert main([*command, "--skip-broken"]) == 0
    said = capsys.readouterr().err
    assert "left out 2: " in said and "loose.png (in no class folder)" in said and "3.png (cannot identify" in said
    assert "Left out 2: " in (tmp_path / "run" / "report.html").read_text()
    # What the run was told stands in its settings, and a resumed one does the same.
    assert "skip_broken: true" in (tmp_path / "run" / "config.yaml").read_text()
    assert main([*command[:-4], "--epochs", "2", "--batch-size", "8", "--out", "run", "--resume"]) == 0
    assert main(["evaluate", "run", "--data", str(photos), "--skip-broken"]) == 0
    assert "left out 2: " in capsys.readouterr().err
