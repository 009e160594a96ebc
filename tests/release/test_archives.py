"""The bytes of an archive depend on its content alone."""

import csv
import hashlib
import os
import tarfile
import zipfile
from base64 import urlsafe_b64encode

import pytest

from release import archives
from tests.subprocesses import files_of_at_most

INFO = "robustdml_ops-0.1.0.dist-info"
FILES = {
    "robustdml_ops/__init__.py": b"x = 1\n",
    "robustdml_ops/_native.so": b"\x7fELF" * 100,
    f"{INFO}/METADATA": b"Name: robustdml_ops\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n",
    f"{INFO}/RECORD": b"of old\n",
}


def wheel(path, names, moment, mode):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            one = zipfile.ZipInfo(name, moment)
            one.external_attr = (mode | (0o111 if name.endswith(".so") else 0)) << 16
            archive.writestr(one, FILES[name])
    return path


@pytest.fixture
def two_wheels(tmp_path):
    """The same files in another order, of another time, made under another umask."""
    names = list(FILES)
    first = wheel(tmp_path / "first.whl", names, (2020, 1, 1, 0, 0, 0), 0o644)
    return first, wheel(tmp_path / "second.whl", names[::-1], (2026, 5, 5, 5, 5, 4), 0o600)


def test_wheels_of_one_content_have_the_same_bytes(two_wheels):
    assert two_wheels[0].read_bytes() != two_wheels[1].read_bytes()
    for one in two_wheels:
        archives.rewrite_wheel(one, 1_700_000_000, {"sboms/list.json": b"{}"})
    assert two_wheels[0].read_bytes() == two_wheels[1].read_bytes()


def test_the_record_names_every_file_and_its_digest(two_wheels):
    archives.rewrite_wheel(two_wheels[0], 1_700_000_000, {"sboms/list.json": b"{}"})
    with zipfile.ZipFile(two_wheels[0]) as archive:
        names = archive.namelist()
        rows = {row[0]: row[1:] for row in csv.reader(archive.read(f"{INFO}/RECORD").decode().splitlines())}
        assert set(rows) == set(names)
        for name in names[:-1]:
            content = archive.read(name)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert rows[name] == [f"sha256={digest}", str(len(content))]
        modes = {one.filename: one.external_attr >> 16 & 0o777 for one in archive.infolist()}
    assert names[-1] == f"{INFO}/RECORD"
    assert rows[names[-1]] == ["", ""]
    assert f"{INFO}/sboms/list.json" in names
    assert modes["robustdml_ops/_native.so"] == 0o755
    assert modes["robustdml_ops/__init__.py"] == 0o644


def test_a_time_that_zip_does_not_know(two_wheels):
    archives.rewrite_wheel(two_wheels[0], 0, {})
    with zipfile.ZipFile(two_wheels[0]) as archive:
        assert {one.date_time for one in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_source_distributions_of_one_content_have_the_same_bytes(tmp_path):
    made = []
    for number, names in enumerate((["a/b.py", "a/c.py"], ["a/c.py", "a/b.py"])):
        tree = tmp_path / str(number)
        (tree / "a").mkdir(parents=True)
        archive = tmp_path / f"{number}.tar.gz"
        with tarfile.open(archive, "w:gz") as files:
            for name in names:
                (tree / name).write_text(name)
                os.utime(tree / name, (number, number))
                files.add(tree / name, name)
        archives.rewrite_sdist(archive, 1_700_000_000)
        made.append(archive)
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as files:
        assert files.getnames() == ["a/b.py", "a/c.py"]
        assert {(one.mtime, one.uid, one.uname, one.mode) for one in files} == {(1_700_000_000, 0, "", 0o644)}


def test_half_an_archive_never_has_its_name(tmp_path):
    """After a copy onto a full disk the old archive is there, and the next copy replaces it."""
    archive, folder = tmp_path / "one.whl", tmp_path / "dist"
    archive.write_bytes(b"of before")
    assert archives.publish(archive, folder) == folder / "one.whl"
    archive.write_bytes(b"new" * 1000)
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        archives.publish(archive, folder)
    assert (folder / "one.whl").read_bytes() == b"of before"
    archives.publish(archive, folder)
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [("one.whl", b"new" * 1000)]
