import os
import threading

import pytest

from robustdml.cache import cache_folder, write_text, write_whole


def test_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("ROBUSTDML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "b" / "robustdml_ops"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "robustdml_ops"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "file"
    write_text(path, "old")

    def fail(file):
        file.write(b"half of the n")
        raise RuntimeError("full disk")

    with pytest.raises(RuntimeError, match="full disk"):
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]


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
