"""A run on two processes equals the run on one: the cases of `two_processes.py`, in processes of their own."""

import pickle

import pytest

from tests.subprocesses import run_python


@pytest.mark.nightly
def test_two_processes(tmp_path):
    done = run_python("-m", "app.tests.two_processes", str(tmp_path), OMP_NUM_THREADS="1")
    for rank in (0, 1):
        results = pickle.loads((tmp_path / f"results-2-{rank}").read_bytes())
        assert len(results) == 4, done.stderr
        assert not any(results.values()), next(filter(None, results.values()))
