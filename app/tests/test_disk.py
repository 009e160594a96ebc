"""Full disks and other processes at the same files: the path is named, what was whole stays, and one writes at a time.

Also what processes that were killed leave.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from app.tests.conftest import refused, run_command
from robustdml import cache
from robustdml.cache import LOCK, cache_folder, in_turn, make_once, read_array, sole_use, write_text, write_whole
from robustdml.errors import UsageError
from robustdml.plain_files import save_plain
from robustdml.train import train
from tests.subprocesses import files_of_at_most


@pytest.mark.parametrize(
    "command",
    [
        "train --data unread --out run",
        "embed unread unread --out new/run.npz",
        "evaluate unread --data unread --out run",
        "search unread unread --in unread --out run",
    ],
)
def test_a_folder_without_permission(command, tmp_path, monkeypatch):
    """To root all folders may be written to, so that the answer is made up."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert f"no permission to write to {tmp_path}" in refused(*command.split())


@pytest.mark.parametrize(
    ("room", "file"),
    # The checkpoint is some 34 kB, the report 50.
    [(300, "config.yaml"), (20_000, "checkpoint.pt"), (42_000, "report.html")],
)
def test_a_full_disk_names_the_file(clusters_file, tmp_path, room, file):
    out = tmp_path / "run"
    with files_of_at_most(room):
        said = refused(*next(commands(clusters_file, out)))
    assert said.splitlines()[-1] == f"robustdml train: {out / file}: file too large"
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
    write = lambda content: [write_whole(path, lambda f: f.write(content)) for _ in range(40)]  # noqa: E731
    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    seen = {path.read_bytes()}
    while any(writer.is_alive() for writer in writers):
        seen.add(path.read_bytes())
    assert seen <= set(contents)
    assert [entry for entry in os.listdir(tmp_path) if "file" in entry] == ["file"]


def test_what_was_whole_stays_where_writing_fails(tmp_path):
    path = tmp_path / "weights.pt"
    path.write_bytes(b"whole")

    def fail(_):
        raise OSError(28, "No space left on device")

    full = SimpleNamespace(write=fail, flush=lambda: None)  # a disk below torch's own writer
    for write in (lambda _: torch.save({"x": torch.zeros(9)}, full), lambda _: full.write(b"x")):
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


needs_locks = pytest.mark.skipif(os.name == "nt", reason="there are no locks of that kind on Windows")


def commands(clusters_file, out):
    settings = ["--epochs", "1", "--method", "contrastive", "--device", "cpu"]
    yield ["train", "--data", clusters_file, *settings, "--out", out]
    yield ["audit", clusters_file, "--as-they-are", "--out", out]


@needs_locks
def test_two_runs_into_one_folder_are_refused(clusters_file, tmp_path):
    out = tmp_path / "out"
    with sole_use(out / LOCK, out):
        for command in commands(clusters_file, out):
            told = refused(*command).splitlines()[-1]
            assert f"{out} is in use by process {os.getpid()} on " in told and "wait until that ends" in told
        assert [entry.name for entry in out.iterdir()] == [LOCK]
    assert not out.exists()


@needs_locks
def test_of_many_at_once_one_has_the_lock(tmp_path):
    inside, most = [], []

    def enter():
        for _ in range(40):
            with in_turn(tmp_path / "lock"):
                inside.append(1)
                time.sleep(1e-4)  # The others run.
                most.append(len(inside))
                inside.pop()

    run_together(enter, 6)
    assert len(most) == 240 and set(most) == {1}
    assert not list(tmp_path.iterdir())


def run_together(function, count):
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@needs_locks
def test_of_two_that_make_one_cache_one_makes_it(tmp_path):
    path, made, seen = tmp_path / "deep" / "array.npy", [], []

    def make():
        made.append(1)
        time.sleep(0.2)
        write_whole(path, lambda file: np.save(file, np.arange(5)))

    def use():
        make_once(make, path)
        seen.append(read_array(path).sum())

    run_together(use, 4)
    assert (len(made), seen) == (1, [10] * 4)
    assert [entry.name for entry in path.parent.iterdir()] == ["array.npy"]


def test_files_that_go_together_are_made_anew_where_one_is_missing(tmp_path):
    files = [tmp_path / "images", tmp_path / "codes"]

    def make():
        for file in files:
            write_text(file, "made")

    make_once(make, *files)
    files[0].unlink()
    make_once(make, *files)
    assert files[0].exists()


@needs_locks
def test_where_there_are_no_locks_all_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.fcntl, "flock", Mock(side_effect=OSError(38, "Function not implemented")))
    with sole_use(tmp_path / "a", tmp_path), sole_use(tmp_path / "a", tmp_path), in_turn(tmp_path / "b"):
        write_text(tmp_path / "c", "text")
    assert (tmp_path / "c").read_text() == "text"


@needs_locks
def test_what_a_killed_writer_left_is_taken_away_and_what_a_living_one_writes_is_not(tmp_path):
    handle, killed = cache._new_file(tmp_path)
    os.write(handle, b"half")
    os.close(handle)
    living, alive = cache._new_file(tmp_path)
    other = tmp_path / f".abc.another-machine{cache.UNFINISHED}"
    other.write_text("half")
    write_text(tmp_path / "file", "whole")
    assert not os.path.exists(killed) and os.path.exists(alive) and other.exists()
    # Of another machine no lock may be seen from here: it goes when nobody has touched it for a day.
    long_ago = time.time() - cache.GIVEN_UP - 1
    os.utime(other, (long_ago, long_ago))
    write_text(tmp_path / "file", "whole")
    os.close(living)
    assert not other.exists()


def test_names_as_long_as_they_can_be(tmp_path):
    write_text(tmp_path / ("n" * 255), "text")
    assert [len(entry.name) for entry in tmp_path.iterdir()] == [255]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", None, b"not an array"])
def test_a_damaged_file_of_the_cache_is_told(tmp_path, content):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(1000))
    path.write_bytes(path.read_bytes()[:900] if content is None else content)
    for mode in (None, "r", "c"):
        with pytest.raises(UsageError, match=r"array.npy: damaged \(.*\); delete it, and it is made again"):
            read_array(path, mode)


def test_a_run_killed_between_checkpoint_and_history_has_its_whole_history(clusters_file, tmp_path):
    out = tmp_path / "out"
    command = [*next(commands(clusters_file, out)), "--epochs", "2"]
    run_command(*command)
    history = out / "history.jsonl"
    whole = history.read_text()
    history.write_text(whole.splitlines(keepends=True)[0])
    run_command(*command, "--resume")
    assert history.read_text() == whole


def test_an_audit_killed_before_its_first_file_goes_on_and_its_lock_file_locks_nothing(clusters_file, tmp_path):
    out = tmp_path / "out"
    write_text(out / LOCK, "process 1 on nowhere")
    (out / ".half").write_text("{")
    _, command = commands(clusters_file, out)
    run_command(*command)
    assert not (out / LOCK).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: [], "not a checkpoint of format"),
        (lambda content: content | {"format": content["format"] - 1}, "not a checkpoint of format"),
        (lambda content: {"format": content["format"]}, "parts missing"),
        (lambda content: content | {"state": {}}, "not the state of this run"),
        (lambda content: content | {"state": content["state"] | {"embedder": {}}}, "not the state of this run"),
        (lambda content: content | {"state": content["state"] | {"rng": torch.zeros(2)}}, "not the state of this run"),
    ],
)
def test_a_checkpoint_that_is_none_of_this_run(feature_run, clusters, tmp_path, change, words):
    result, folder = feature_run
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    save_plain(tmp_path / "checkpoint.pt", change(content))
    with pytest.raises(UsageError, match=words):
        train(result.config, clusters, out=tmp_path, resume=True, device="cpu")
