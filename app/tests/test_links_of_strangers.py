"""Names that are known beforehand, in folders that somebody else has filled: nothing is written through them."""

import os
import stat
import sys

import numpy as np
import pytest

from app.tests.conftest import finding, refused, run_command
from app.tests.test_hostile_paths import photograph
from robustdml import cache
from robustdml.audit_report.findings import write_findings
from robustdml.cache import LOCK, UNFINISHED, begun_file, in_full, make_once, take_away, write_whole
from robustdml.errors import UsageError
from robustdml.plain_files import read_json, read_npz, read_plain
from robustdml.settings import read_settings
from robustdml.tables import read_table

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of Unix")
KINDS = ("link out", "dangling link", "link to a device", "second name", "pipe", "folder")
SECRET = b"the only copy"


@pytest.fixture
def precious(tmp_path):
    """A file of the user, outside of all that a command may write to."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "bashrc").write_bytes(SECRET)
    yield folder / "bashrc"
    assert (folder / "bashrc").read_bytes() == SECRET
    assert [file.name for file in folder.iterdir()] == ["bashrc"]


def place(kind, path, precious):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "second name":
        os.link(precious, path)
    elif kind in ("pipe", "folder"):
        {"pipe": os.mkfifo, "folder": os.mkdir}[kind](path)
    else:
        targets = {"link out": precious, "dangling link": precious.with_name("new"), "link to a device": "/dev/null"}
        path.symlink_to(targets[kind])


def in_one_line(said, path):
    last = said.splitlines()[-1]
    assert str(path) in last and "look at it, and delete it" in last and "Traceback" not in said


@pytest.mark.parametrize("kind", KINDS)
def test_the_lock_of_a_received_run(kind, tmp_path, clusters_file, precious):
    out, settings = tmp_path / "run", ("--method", "contrastive", "--device", "cpu")
    run_command("train", "--data", clusters_file, "--out", out, "--epochs", "1", *settings)
    place(kind, out / LOCK, precious)
    in_one_line(refused("train", "--out", out, "--resume", "--epochs", "2"), out / LOCK)


@pytest.mark.parametrize("kind", KINDS)
def test_the_lock_of_an_audit(kind, tmp_path, clusters_file, precious):
    place(kind, tmp_path / "audit" / LOCK, precious)
    said = refused("audit", clusters_file, "--as-they-are", "--out", tmp_path / "audit")
    in_one_line(said, tmp_path / "audit" / LOCK)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [".clean.lock", ".clean.unfinished"])
def test_what_apply_writes_beside_the_clean_folder(name, kind, tmp_path, precious):
    photograph(tmp_path / "photos" / "a.png")
    write_findings(tmp_path / "labels.csv", [finding(tmp_path / "photos" / "a.png")])
    place(kind, tmp_path / name, precious)
    if (name, kind) == (".clean.unfinished", "folder"):  # As one that was killed leaves it.
        run_command("apply", tmp_path / "labels.csv", "--to", tmp_path / "clean")
        return
    in_one_line(refused("apply", tmp_path / "labels.csv", "--to", tmp_path / "clean"), tmp_path / name)
    assert not (tmp_path / "clean").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_locks_and_unfinished_files_of_the_cache(kind, own_cache, precious):
    path = own_cache / "features" / "net-1.npy"
    place(kind, path.with_name(f".{path.name}.lock"), precious)
    with pytest.raises(UsageError, match=r"net-1\.npy\.lock: .* look at it, and delete it"):
        make_once(lambda: path.write_bytes(b""), path)
    place(kind, begun_file(path), precious)
    with pytest.raises(UsageError, match=r"net-1\.npy\.begun: .* look at it, and delete it"), in_full(path) as file:
        file.truncate()
    assert not path.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_leftovers_are_links_of_others(kind, tmp_path, precious):
    """What a process that was killed has left is taken away by its name."""
    name = tmp_path / "out" / f".x{cache._unfinished_here()}"
    place(kind, name, precious)
    os.utime(name, (0, 0), follow_symlinks=False) if kind != "second name" else None
    write_whole(tmp_path / "out" / "file", lambda file: file.write(b"whole"))
    assert name.name.endswith(UNFINISHED) and not take_away(name) and os.path.lexists(name)


def test_a_lock_of_another_user(tmp_path, monkeypatch):
    (tmp_path / LOCK).touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match="a file of another user"), cache.in_turn(tmp_path / LOCK):
        pass


def test_a_cache_that_others_may_write_to(tmp_path, monkeypatch):
    path = tmp_path / "shared" / "features" / "a.npy"
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "shared"))
    make_once(lambda: path.write_bytes(b"x"), path)
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for wide in (0o777, 0o720, 0o1777):
            folder.chmod(wide)
            with pytest.raises(UsageError, match=rf"cache {folder}: other users may write to it.*ROBUSTDML_CACHE"):
                make_once(lambda: pytest.fail("made"), path)
            folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match="belongs to another user; name a folder of your own in ROBUSTDML_CACHE"):
        make_once(lambda: pytest.fail("made"), path)


def test_the_users_own_cache_is_closed_to_others(tmp_path, monkeypatch):
    """A folder of an earlier version, made under a umask that lets the group write."""
    monkeypatch.delenv("ROBUSTDML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "robustdml_ops" / "features").mkdir(parents=True)
    for folder in (tmp_path / "robustdml_ops", tmp_path / "robustdml_ops" / "features"):
        folder.chmod(0o775)
    path = tmp_path / "robustdml_ops" / "features" / "a.npy"
    make_once(lambda: path.write_bytes(b"x"), path)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)} == {0o755}


READERS = {
    "checkpoint": lambda path: read_plain(path, "checkpoint"),
    "state": lambda path: read_json(path, "state"),
    "list": lambda path: read_table(path, "list"),
    "features": lambda path: read_npz(path, ["features"]),
    "settings": read_settings,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device"])
def test_what_never_ends_is_not_read(reader, kind, tmp_path, precious):
    place(kind, tmp_path / "odd", precious)
    with pytest.raises(UsageError, match=r"odd: not a readable .* \(it is a (folder|pipe, a device or a socket)\)$"):
        READERS[reader](tmp_path / "odd")


def test_settings_that_are_nested_deeply(tmp_path):
    (tmp_path / "config.yaml").write_text("a: " + "[" * 5000)
    with pytest.raises(UsageError, match=r"config\.yaml: not readable as YAML \(it is nested too deeply\)"):
        read_settings(tmp_path / "config.yaml")


def test_event_files_do_not_follow_a_link(tmp_path, precious):
    from robustdml.progress import TensorBoard

    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").symlink_to(precious.parent)
    with pytest.raises(UsageError, match="tensorboard: a link, where a folder of the run is needed"):
        TensorBoard(tmp_path / "tensorboard").start([], 1)


def test_an_array_is_read_as_before(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.ones(3))
    (tmp_path / "b.npz").symlink_to(tmp_path / "a.npz")  # of data that lies elsewhere
    assert read_npz(tmp_path / "b.npz", ["features"])["features"].sum() == 3
