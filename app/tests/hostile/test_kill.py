"""Kills and faults of the disk, a few of each; `app.tests.hostile.kill` does hundreds."""

import json
import shutil
import sys

import pytest

from tests.subprocesses import run_python


@pytest.mark.parametrize(
    ("kills", "faults", "commands"),
    [(2, 1, ["apply"]), pytest.param(4, 2, ["train", "cache", "apply"], marks=pytest.mark.nightly)],
)
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs LD_PRELOAD and a compiler")
def test_what_is_killed_goes_on_and_ends_with_the_same_files(tmp_path, kills, faults, commands):
    found = tmp_path / "found.json"
    counts = ["--kills", str(kills), "--faults", str(faults), "--only", *commands, "--seed", "3"]
    done = run_python("-m", "app.tests.hostile.kill", *counts, "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(found.read_text())
    assert (told["kills"], told["wrong"]) == (kills, [])
    assert told["faults"] >= 1
