"""Kills and faults of the disk, a few of each; `app.tests.hostile.kill` does hundreds."""

import re
import shutil
import sys

import pytest

from app.tests.hostile.kill import surroundings
from tests.subprocesses import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs LD_PRELOAD and a compiler"
)


@pytest.mark.parametrize(
    ("kills", "faults", "commands"),
    [(2, 1, ["apply"]), pytest.param(4, 2, ["train", "cache", "apply"], marks=pytest.mark.nightly)],
)
def test_what_is_killed_goes_on_and_ends_with_the_same_files(kills, faults, commands, tmp_path):
    counts = ["--kills", str(kills), "--faults", str(faults), "--only", *commands, "--seed", "3"]
    done = run_python("-m", "app.tests.hostile.kill", *counts, **surroundings(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r": (\d+) kills .*, (\d+) faults .*, 0 wrong;", done.stdout)
    assert len(told) == len(commands) and sum(int(done) for done, _ in told) == kills
    assert sum(int(done) for _, done in told) >= 1


@pytest.mark.nightly
def test_fifty_signals_lose_no_step_and_none_is_done_twice(tmp_path):
    counts = ["--signals", "50", "--only", "preempted"]
    done = run_python("-m", "app.tests.hostile.kill", *counts, timeout=3000, **surroundings(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r" 50 signals .*'in a step': \d+.*, 0 wrong;", done.stdout)
