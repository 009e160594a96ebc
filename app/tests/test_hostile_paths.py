"""Images, names and lists of strangers: what they point to, what they are called, and what is missing of them."""

import contextlib
import csv
import io
import os
import random
import re
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.table import Table

from app.tests.conftest import finding, refused, run_command, save_photos
from robustdml.__main__ import main as start
from robustdml.audit_report.findings import read_findings, write_findings
from robustdml.audit_report.samples import read_samples
from robustdml.cache import write_text
from robustdml.commands import audit
from robustdml.data import load_data
from robustdml.data.folders import folder_images
from robustdml.data.images import MOST_MEGAPIXELS, decode, limit_pixels
from robustdml.errors import OBEYED, UsageError
from robustdml.progress import show_table
from robustdml.trained.embedder import load_embedder


@pytest.fixture(autouse=True)
def usual_limit():
    yield
    limit_pixels(MOST_MEGAPIXELS)


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="names and pipes of Linux")


FAST = ("--device", "cpu", "--method", "contrastive", "--batch-size", "32", "--embedding-size", "8")


def photograph(path, label=0, side=12):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(label).integers(0, 60, (side, side, 3)) + 40 * label
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def test_images_that_are_not_opened(tmp_path):
    """They unpack to more than memory, or start a program: Pillow gives PostScript to Ghostscript."""
    path = tmp_path / "image.png"
    header = b"IHDR" + (60_000).to_bytes(4, "big") * 2 + bytes([1, 0, 0, 0, 0])
    parts = [header, b"IDAT", b"IEND"]
    chunks = (len(part[4:]).to_bytes(4, "big") + part + zipfile.crc32(part).to_bytes(4, "big") for part in parts)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    assert "more than 128 million pixels; --max-megapixels takes" in decode(path, 8)
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    assert "cannot identify image file" in decode(path, 8)


def test_an_image_of_very_many_pixels_is_refused_at_once(tmp_path):
    """144 megapixels in half a megabyte took a minute, and a warning of Python."""
    save_photos(tmp_path / "data", classes=2, images=2, size=(12, 12))
    large = tmp_path / "data" / "class 0" / "large.png"
    Image.new("1", (12_000, 12_000)).save(large)
    command = ("train", "--data", tmp_path / "data", "--backbone", "untrained", "--image-size", "8")
    began = time.process_time()
    told = refused(*command)
    assert f"{large} (more than 128 million pixels; --max-megapixels takes larger ones)" in told.splitlines()[-1]
    assert "Warning" not in told and time.process_time() - began < 20
    assert "more than 0.0001 million pixels" in refused(*command, "--max-megapixels", "0.0001")
    assert "'-1': expected a number above 0" in refused(*command, "--max-megapixels", "-1")
    assert isinstance(decode(photograph(tmp_path / "small.png"), 8), str)  # as the last command has set
    limit_pixels(150)
    assert not isinstance(decode(large, 8), str)


def test_damaged_images_end_in_one_sentence(tmp_path):
    chance, path = random.Random(0), tmp_path / "damaged.png"
    pixels = np.random.default_rng(0).integers(0, 255, (20, 24, 3)).astype(np.uint8)
    whole = []
    exif = Image.Exif()
    exif[274] = 6
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"):
        text = io.BytesIO()
        Image.fromarray(pixels).save(text, kind, exif=exif)
        whole.append(text.getvalue())
    told = []
    for _ in range(200):
        content = bytearray(chance.choice(whole))
        if chance.random() < 0.3:
            del content[chance.randrange(len(content)) :]
        for _ in range(chance.choice((1, 4, 16)) if content else 0):
            content[chance.randrange(min(len(content), 200))] = chance.randrange(256)
        path.write_bytes(content)
        decoded = decode(path, 8)
        told += [decoded] if isinstance(decoded, str) else []
    assert len(told) > 80 and not any("\n" in one for one in told)


@LINUX
@pytest.mark.parametrize("kind", ["pipe", "loop", "gone", "folder", "empty", "device"])
def test_what_is_called_an_image_and_is_none(tmp_path, kind):
    """A pipe would be read for ever."""
    save_photos(tmp_path / "data", classes=3, images=1, size=(12, 12))
    odd = tmp_path / "data" / "class 0" / "odd.png"
    if kind in ("pipe", "folder", "empty"):
        {"pipe": os.mkfifo, "folder": os.mkdir, "empty": Path.touch}[kind](odd)
    else:
        odd.symlink_to({"loop": odd, "gone": tmp_path / "gone.png", "device": "/dev/zero"}[kind])
    taken = {file.name for file in folder_images(tmp_path / "data").files}
    assert taken == ({"0.png"} if kind in ("pipe", "folder") else {"0.png", "odd.png"})
    if len(taken) == 1:
        load_data(str(tmp_path / "data"), image_size=8)
        return
    assert isinstance(decode(odd, 8), str)
    command = ("train", "--data", tmp_path / "data", "--image-size", "8", "--backbone", "untrained")
    assert str(odd) in refused(*command).splitlines()[-1]


@LINUX
def test_a_file_that_cannot_be_made_is_told_by_its_name(monkeypatch):
    monkeypatch.chdir("/")
    with pytest.raises(OSError, match="'proc/all'") as raised:
        write_text(Path("proc/all"), "")
    assert raised.value.filename == "proc/all"


@LINUX
def test_links_in_a_circle(tmp_path):
    save_photos(tmp_path / "data", classes=3, images=1, size=(12, 12))
    # Within a class links to folders are passed over; as a class one would hold all images under one more label.
    (tmp_path / "data" / "class 0" / "up").symlink_to(tmp_path / "data")
    images = folder_images(tmp_path / "data")
    assert images.labels.tolist() == [0, 1, 2] and images.class_names == ("class 0", "class 1", "class 2")
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data")
    with pytest.raises(UsageError, match="again: a link to a folder that it lies in"):
        folder_images(tmp_path / "data")
    (tmp_path / "data" / "again").unlink()
    (tmp_path / "data" / "self").symlink_to("self")
    assert len(folder_images(tmp_path / "data").class_names) == 3
    photograph(tmp_path / "elsewhere" / "b.png")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    images = folder_images(tmp_path / "data")
    assert (images.labels == images.class_names.index("linked")).sum() == 1


ODD_NAMES = ("line\nbreak", "\x1b[2J\x07", "caf\udce9", "=cmd", "-rf", "a,b\"c'", "  blanks ", "n" * 240, "\u202egnp")


@pytest.fixture
def no_backbone(monkeypatch):
    """Pixels are the features: a backbone takes a minute."""

    def pixels(samples, *_):
        features = np.float32(samples.inputs[:]).reshape(len(samples.inputs), -1)
        return features, features, None

    monkeypatch.setattr(audit, "_features", pixels)


@LINUX
@pytest.mark.usefixtures("no_backbone")
def test_names_from_folder_to_audit_to_clean_folder(tmp_path):
    data, out, clean = tmp_path / "data", tmp_path / "out", tmp_path / "clean"
    for label, name in enumerate(ODD_NAMES):
        for number in range(3):
            photograph(data / name / f"{name}{number}.png", label)
    (data / ODD_NAMES[1] / f"{ODD_NAMES[1]}.png").write_text("no image")
    told = run_command("audit", data, "--out", out, "--image-size", "8").err
    # What a terminal would obey is written out.
    assert "left out 1: " in told and "\\x1b[2J\\x07.png" in told and "\x1b" not in told
    assert {one.label for one in read_findings(out / "labels.csv")} == set(ODD_NAMES)
    (out / "audit.html").read_text(encoding="utf-8")
    run_command("apply", out / "labels.csv", "--to", tmp_path / "clean.csv")
    assert set(read_samples(str(tmp_path / "clean.csv")).class_names) == set(ODD_NAMES)
    # A folder of that name would be obeyed by the terminal that lists it.
    told = refused("apply", out / "labels.csv", "--to", clean)
    assert "cannot be the name of a folder; give --to a .csv list" in told
    findings = [one for one in read_findings(out / "labels.csv") if not re.search(OBEYED, one.label)]
    write_findings(out / "labels.csv", findings)
    run_command("apply", out / "labels.csv", "--to", clean, "--use", "drop", "--copy")
    kept = {str(file.relative_to(clean)) for file in clean.rglob("*.png")}
    assert kept <= {str(file.relative_to(data)) for file in data.rglob("*.png")} and len(kept) > 15


@LINUX
def test_a_run_on_names_that_are_not_utf_8(tmp_path, clusters, monkeypatch):
    source, out = tmp_path / "caf\udce9\n.npz", tmp_path / "r\udce9sultat"
    np.savez(source, features=clusters.train.inputs, labels=clusters.train.labels)
    run_command("train", "--data", source, "--device", "cpu", "--out", out, "--method", "contrastive", "--epochs", "1")
    # To a terminal of ASCII, from the settings that were kept.
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["robustdml", "train", "--out", str(out), "--resume", "--epochs", "2"])
    assert start() == 0
    assert "caf\\udce9\\n" in (out / "report.html").read_text(encoding="utf-8")
    assert load_embedder(out).card.trained_by["data"]["name"] == source.stem


def test_brackets_in_a_path_are_no_markup(tmp_path, clusters_file):
    """One that ends no markup raised, another was left out of the path."""
    out = tmp_path / "run [v2] [" / "bold] :warning: \x1b[2J"
    told = run_command("train", "--data", clusters_file, *FAST, "--out", out, "--epochs", "2").out
    assert told.count("run [v2] [/bold] :warning: \\x1b[2J") >= 3 and "\x1b" not in told
    assert "unexpected argument 'a\\x1b[2J'" in refused("train", "a\x1b[2J")
    table = Table("a name [/bold] [v2]", title="[red]:warning:")
    table.add_row("[v2]")
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        show_table(table)
    assert all(name in text.getvalue() for name in ("a name [/bold] [v2]", "[red]:warning:", "│ [v2]"))


@pytest.mark.usefixtures("no_backbone")
def test_lists_that_point_elsewhere(tmp_path):
    folder = tmp_path / "folder"
    for number in range(4):
        photograph(folder / f"{number}.png", number % 2)
    for name in ("private.png", "other.png"):
        photograph(tmp_path / name, 1)
    rows = [(f"{number}.png", f"{number % 2}") for number in range(4)]
    rows += [("../private.png", "1"), (str(tmp_path / "other.png"), "0"), ("~nobody-of-this-name/x.png", "1")]
    rows += [("a\0b.png", "1")] if sys.version_info >= (3, 11) else []
    path = folder / "list.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    told = run_command("audit", path, "--out", tmp_path / "out", "--image-size", "8").err
    assert f"robustdml audit: 2 of {len(rows)} images lie outside of {folder}, the first is {folder}/../private" in told
    assert f"left out {len(rows) - 6}: " in told and "~nobody-of-this-name" in told


def test_nothing_but_images_is_copied_out_of_other_folders(tmp_path):
    (tmp_path / "id_rsa").write_text("secret")
    photograph(tmp_path / "a.png")
    for secret in ("id_rsa", "a.png/../id_rsa"):
        write_findings(tmp_path / "labels.csv", [finding(tmp_path / "a.png"), finding(tmp_path / secret)])
        for options in ([], ["--copy"]):
            assert re.search("without a file|no images", refused("apply", "labels.csv", "--to", "clean", *options))
    assert not list(tmp_path.glob("clean*")) and not list(tmp_path.glob(".clean*"))


@pytest.mark.parametrize("label", ["../x", "/x", "a/b", "a\0b", "..", ".x", "", "a\x1b[2J", "a\nb", "\u202egnp"])
def test_no_class_leaves_the_folder(label, tmp_path):
    photograph(tmp_path / "a.png")
    write_findings(tmp_path / "labels.csv", [finding(tmp_path / "a.png", label)])
    told = refused("apply", "labels.csv", "--to", "clean")
    assert "cannot be the name of a folder; give --to a .csv list" in told or "line contains NUL" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "labels.csv"]


def test_no_image_takes_the_place_of_another(tmp_path):
    """Of files of one name, of names that differ in case alone, and of names that look like a number put to one."""
    names = ["a/x.png", "b/x.png", "b/X.png", "c/x-1.png", "d/x-1.png", "e/x-2.PNG"]
    names += [f"{folder}/{'é' * 124}.png" for folder in "fgh"]
    for number, name in enumerate(names):
        photograph(tmp_path / name, number % 5)
    write_findings(tmp_path / "labels.csv", [finding(tmp_path / name) for name in names])
    run_command("apply", tmp_path / "labels.csv", "--to", tmp_path / "clean", "--copy")
    clean = list((tmp_path / "clean" / "x").iterdir())
    assert len({file.name.casefold() for file in clean}) == len(names)
    assert sorted(file.read_bytes() for file in clean) == sorted((tmp_path / name).read_bytes() for name in names)


@pytest.mark.usefixtures("no_backbone")
def test_an_audit_does_not_take_up_what_was_made_of_other_images(tmp_path):
    save_photos(tmp_path / "data", classes=2, images=3, size=(12, 12))
    command = ["audit", tmp_path / "data", "--out", tmp_path / "out", "--image-size", "8"]
    run_command(*command)
    run_command(*command)
    photograph(tmp_path / "data" / "class 0" / "0.png", 5, side=20)
    assert "holds an audit with other samples" in refused(*command)


@LINUX
def test_a_link_to_an_image_elsewhere_is_told_when_it_is_copied(tmp_path):
    private = photograph(tmp_path / "private" / "scan.png", 3)
    files = [photograph(tmp_path / "data" / "x" / f"{number}.png", number) for number in range(3)]
    (tmp_path / "data" / "x" / "within.png").symlink_to(files[0])
    out = tmp_path / "data" / "x" / "3.png"
    out.symlink_to(private)
    write_findings(tmp_path / "labels.csv", [finding(file) for file in (*files, files[0].with_name("within.png"))])
    assert not run_command("apply", tmp_path / "labels.csv", "--to", tmp_path / "clean", "--copy").err
    write_findings(tmp_path / "labels.csv", [finding(file) for file in (*files, out)])
    told = run_command("apply", tmp_path / "labels.csv", "--to", tmp_path / "again", "--copy").err
    assert f"copies 1 image that links lead to elsewhere, the first is {out} to {private}" in told
    assert not run_command("apply", tmp_path / "labels.csv", "--to", tmp_path / "linked").err


@LINUX
def test_a_secret_that_is_called_an_image_is_not_copied(tmp_path):
    photograph(tmp_path / "a.png")
    (tmp_path / "id_rsa").write_text("secret")
    (tmp_path / "renamed.png").write_text("secret")
    (tmp_path / "link.png").symlink_to(tmp_path / "id_rsa")
    for name in ("renamed.png", "link.png"):
        write_findings(tmp_path / "labels.csv", [finding(tmp_path / "a.png"), finding(tmp_path / name)])
        said = refused("apply", tmp_path / "labels.csv", "--to", tmp_path / "clean", "--copy")
        assert f"no images by their content: {tmp_path / name}; leave them out" in said
        assert not list(tmp_path.glob("*clean*"))
