"""Files that are missing, full disks, files where folders should be: the path is named, and what was whole stays."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from app.tests.conftest import refused
from robustdml.cache import cache_folder, write_whole
from robustdml.cli import main
from robustdml.errors import UsageError
from tests.subprocesses import files_of_at_most


def test_a_folder_without_permission(tmp_path, capsys, monkeypatch):
    """To root all folders may be written to, so that the answer is made up."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert f"no permission to write to {tmp_path}" in refused(capsys, "train", "--data", "unread", "--out", "run")


@pytest.mark.parametrize(
    ("room", "file"),
    # The checkpoint is some 34 kB, the report 50.
    [(300, "config.yaml"), (20_000, "checkpoint.pt"), (42_000, "report.html")],
)
def test_a_full_disk_names_the_file(clusters_file, tmp_path, capsys, room, file):
    out = tmp_path / "run"
    command = ["train", "--data", clusters_file, "--epochs", "1", "--method", "contrastive", "--out", str(out)]
    with files_of_at_most(room):
        assert main(command) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"robustdml train: {out / file}: file too large"
    assert not (out / file).exists() and not list(out.glob(".*"))


def test_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("ROBUSTDML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "b" / "robustdml_ops"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "robustdml_ops"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # As for a user without a name.
    with pytest.raises(UsageError, match=r"no folder for the cache .*: name one in ROBUSTDML_CACHE"):
        cache_folder()


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([letter]) * 200_000 for letter in b"ab"]
    write_whole(path, lambda file: file.write(contents[0]))
    writers = [
        threading.Thread(
            target=lambda content=content: [write_whole(path, lambda f: f.write(content)) for _ in range(40)]
        )
        for content in contents
    ]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(path.read_bytes())
    assert seen <= set(contents)
    assert [entry for entry in os.listdir(tmp_path) if "file" in entry] == ["file"]


def test_what_was_whole_stays_where_writing_fails(tmp_path):
    path = tmp_path / "weights.pt"
    path.write_bytes(b"whole")

    class Full:
        """A disk that is full after the first bytes, below torch's own writer."""

        def __init__(self, file):
            self.file = file

        def write(self, data):
            raise OSError(28, "No space left on device")

        def flush(self):
            self.file.flush()

    for write in (lambda file: torch.save({"x": torch.zeros(9)}, Full(file)), lambda file: Full(file).write(b"x")):
        with pytest.raises(OSError, match="No space left on device") as raised:
            write_whole(path, write)
        assert raised.value.filename == str(path)
        assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["weights.pt"]
        assert path.read_bytes() == b"whole"


def test_errors_of_other_files_keep_their_names(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        write_whole(tmp_path / "all.npy", lambda file: file.write((tmp_path / "photos" / "gone.jpg").read_bytes()))
    assert raised.value.filename == str(tmp_path / "photos" / "gone.jpg")


@pytest.mark.nightly
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_a_full_standard_output_is_told(clusters_file):
    call = [sys.executable, "-m", "robustdml", "train", "--data", clusters_file, "--epochs", "1"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last == "robustdml train: standard output, or a file without a name: no space left on device"


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise on Windows")
def test_a_reader_that_has_gone_is_no_error():
    script = "import sys; from robustdml.cli import main; import robustdml.commands.train as t\n"
    script += "t.run = lambda _: print('table') or 0\nsys.exit(main(['train']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
