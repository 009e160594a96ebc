"""``robustdml doctor``: the library's, which also looks at the application's cache."""

import sys

from robustdml.__main__ import main
from robustdml.commands import doctor
from robustdml_ops.doctor import speed


def test_a_cache_that_cannot_be_written_to_is_a_finding(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(speed, "C", 500)
    monkeypatch.setattr(speed, "SECONDS", 0.05)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(sys, "argv", ["robustdml", "doctor"])
    assert main() == 1
    assert f"ROBUSTDML_CACHE): {tmp_path / 'file' / 'cache'} can't be written to (" in capsys.readouterr().out


def test_its_options_reach_the_library(monkeypatch):
    given = []
    monkeypatch.setattr(doctor.doctor, "main", lambda argv, prog, folders: given.append((argv, prog)) or 0)
    assert doctor.main(["--json"]) == 0
    assert given == [(["--json"], "robustdml doctor")]
