"""All cases of ``cases_*.py`` in their worlds."""

import filelock
import pytest

from tests.distributed import worlds
from tests.subprocesses import run_python

worlds.load_cases()
PREFIX = "tests/distributed/test_worlds.py"
NIGHTLY = worlds.NIGHTLY | {key for key in worlds.CASES if key[0] > 2}


@pytest.fixture(scope="session")
def results(request, tmp_path_factory, worker_id):
    """Errors by size and name; the worlds run once, whichever of pytest's workers asks first."""
    keys = [item.callspec.params for item in request.session.items if item.nodeid.startswith(PREFIX)]
    wanted = {(key["size"], key["name"]) for key in keys}
    # A world loads what smaller ones have saved.
    sizes = [str(size) for size in worlds.SIZES if size <= max(wanted)[0]]
    short = () if wanted & worlds.NIGHTLY else ("--short",)
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "worlds"
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            run = run_python(
                "-m", "tests.distributed.worlds", str(folder), *sizes, *short, timeout=3600, OMP_NUM_THREADS="1"
            )
            (folder / "stderr").write_text(run.stderr)
    return worlds.read_results(folder)


@pytest.mark.parametrize(
    ("size", "name"),
    [
        pytest.param(*key, id=f"{key[0]}-{key[1]}", marks=pytest.mark.nightly if key in NIGHTLY else ())
        for key in worlds.CASES
    ],
)
def test_case(size, name, results):
    assert results[size, name] is None, results[size, name]
