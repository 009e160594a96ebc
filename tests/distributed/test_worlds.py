"""All cases of ``cases_*.py`` in their worlds."""

import filelock
import pytest

from tests.distributed import worlds
from tests.subprocesses import run_python

worlds.load_cases()


@pytest.fixture(scope="session")
def results(tmp_path_factory, worker_id):
    """What went wrong, by size and name; the worlds run once, whichever of pytest's workers asks first."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "worlds"
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            run = run_python("-m", "tests.distributed.worlds", str(folder), OMP_NUM_THREADS="1")
            (folder / "stderr").write_text(run.stderr)
    return worlds.read_results(folder)


@pytest.mark.parametrize(("size", "name"), [pytest.param(*key, id=f"{key[0]}-{key[1]}") for key in worlds.CASES])
def test_case(size, name, results):
    assert results[size, name] is None, results[size, name]
