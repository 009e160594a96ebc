"""Folders of strangers in which one name is hostile: each command ends in one line, and writes nothing elsewhere."""

import hashlib
import os
import shutil
import sys

import pytest

from app.tests.conftest import SIZE, finding, make_clusters, run_command, save_features, save_photos
from app.tests.hostile import make_cache
from robustdml.audit_report.findings import write_findings
from robustdml.cli import main
from robustdml.errors import UsageError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of Unix")
KINDS = ("link out", "link in", "device", "pipe", "folder", "no bytes", "huge")
HUGE = 2**43  # bytes of a file with holes, which takes none of the disk


def make_hostile(kind, path, home):
    """Put something of this kind in the place of a file."""
    whole = path.read_bytes()
    path.unlink()
    if kind == "link out":
        (home / path.name).write_bytes(whole)
        path.symlink_to(home / path.name)
    elif kind == "link in":
        path.with_name("other").write_bytes(whole)
        path.symlink_to("other")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind in ("pipe", "folder"):
        {"pipe": os.mkfifo, "folder": os.mkdir}[kind](path)
    else:
        path.touch()
        os.truncate(path, HUGE if kind == "huge" else 0)


def hashes(*folders):
    """Kind, target or content of all that lies in the folders, by path."""
    found = {}
    for path in (path for folder in folders for path in sorted(folder.rglob("*"))):
        if path.is_symlink() or not path.is_file():
            found[path] = os.readlink(path) if path.is_symlink() else oct(path.stat().st_mode)
        else:
            held = path.stat().st_size
            found[path] = held if held == HUGE else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


RUN = ("checkpoint.pt", "config.yaml", "history.jsonl", "metrics.json", "model.pt", "report.html")
AUDIT = ("audit.json", "labels.csv", "copies.csv", "features.npz", "audit.html")


def a_run(folder, trained):
    shutil.copytree(trained[0] / "features", folder)
    source = save_features(make_clusters(), folder.parent / "clusters.npz")
    yield (
        "train",
        "--data",
        source,
        "--batch-size",
        "32",
        "--device",
        "cpu",
        "--out",
        folder,
        "--resume",
        "--epochs",
        3,
    )
    yield ("embed", folder, source, "--out", folder / "embeddings.npz", "--device", "cpu")


def photographs(folder, trained):
    save_photos(folder, classes=2, images=2, size=(SIZE, SIZE))
    yield ("embed", trained[0] / "images", folder, "--out", folder.parent / "out" / "x.npz", "--device", "cpu")
    yield ("evaluate", trained[0] / "images", "--data", folder, "--out", folder.parent / "out", "--device", "cpu")


def an_audit(folder, trained):
    source = save_features(make_clusters(), folder.parent / "clusters.npz")
    run_command("audit", source, "--as-they-are", "--out", folder)
    yield ("audit", source, "--as-they-are", "--out", folder)
    yield ("apply", folder / "labels.csv", "--to", folder.parent / "out" / "clean.npz")


def findings(folder, trained):
    photos = save_photos(folder / "photos", classes=2, images=2, size=(12, 12))
    write_findings(folder / "labels.csv", [finding(file, file.parent.name) for file in sorted(photos.rglob("*.png"))])
    (folder / "decisions.csv").write_text("sample,class,decision,label\n")
    for to in ("clean", "clean.csv"):
        decisions = ("--decisions", folder / "decisions.csv")
        yield ("apply", folder / "labels.csv", *decisions, "--to", folder.parent / "out" / to, "--copy")


CASES = [
    *((a_run, name) for name in RUN),
    *((an_audit, name) for name in AUDIT),
    *((findings, name) for name in ("labels.csv", "decisions.csv", "photos/class 0/0.png")),
    (photographs, "class 0/0.png"),
]


@pytest.mark.parametrize(
    ("case", "name", "kind"),
    [
        # By day one kind for each name.
        pytest.param(*case, kind, marks=() if (place + number) % len(KINDS) == 0 else pytest.mark.nightly)
        for place, case in enumerate(CASES)
        for number, kind in enumerate(KINDS)
    ],
)
def test_one_line_and_nothing_outside(case, name, kind, tmp_path, trained, own_cache, capfd):
    home, received = tmp_path / "home", tmp_path / "received"
    home.mkdir()
    (tmp_path / "out").mkdir()
    (home / "bashrc").write_text("the only copy")
    commands = [[str(word) for word in command] for command in case(received, trained)]
    if not (received / name).exists():
        pytest.skip("this version writes no such file")
    make_hostile(kind, received / name, home)
    outside = [home, trained[0]] + ([] if case in (a_run, an_audit) else [received])
    before = hashes(*outside)
    for command in commands:
        capfd.readouterr()
        try:
            status = main(command)
        except SystemExit as end:
            status = end.code
        told = capfd.readouterr().err.splitlines()
        assert status in (0, 2), told
        assert status == 0 or (told[-1].startswith(f"robustdml {command[0]}: ") and "Traceback" not in " ".join(told))
        assert hashes(*outside) == before


def test_names_of_the_cache(tmp_path, own_cache):
    """Each file that is kept there, in turn."""
    home, photos = tmp_path / "home", save_photos(tmp_path / "photos", classes=2, images=3, size=(SIZE, SIZE))
    home.mkdir()
    make_cache.main(str(photos))
    kept = [file.relative_to(own_cache) for file in own_cache.rglob("*") if file.is_file()]
    assert kept
    for number, name in enumerate(kept * len(KINDS)):
        kind = KINDS[number // len(kept)]
        shutil.rmtree(own_cache)
        make_cache.main(str(photos))
        make_hostile(kind, own_cache / name, home)
        before = hashes(home, photos)
        told = ""
        try:
            make_cache.main(str(photos))
        except UsageError as error:
            told = str(error)
        assert not told or (str(own_cache / name) in told and "\n" not in told), (name, kind)
        assert hashes(home, photos) == before, (name, kind)
