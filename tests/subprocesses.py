"""Python in a process of its own: with nothing imported yet, and without what pytest and its workers left there."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_python(*arguments: str, timeout: float = 300, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run in the repository's root, which is on the path, with ``changes`` to the environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "TRITON_"))}
    return subprocess.run(
        [sys.executable, *arguments],
        env=kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'app'}"} | changes,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def printed(code: str, **changes: str) -> str:
    """What ``code`` prints."""
    run = run_python("-c", code, **changes)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.strip()


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full for every file of more bytes, in this process."""
    resource = pytest.importorskip("resource", reason="Windows has no limit of that kind")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def megabytes_beyond(setup: str, warm_up: str, call: str) -> float:
    """By how much ``call`` raises the peak of a process, which has ``torch`` and the ``ops``."""
    peak = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
    lines = ("import resource, torch", "from robustdml_ops import ops", setup, warm_up, f"before = {peak}", call)
    return float(printed("\n".join((*lines, f"print(({peak} - before) / 1024)"))))


def build_environment(**changes: str) -> dict[str, str]:
    """This process' environment without the settings that steer a build, and with its Python's tools first."""
    steering = ("ROBUSTDML_", "CXX", "CUDA", "TORCH_CUDA", "CMAKE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | changes


def run_build(*arguments: object, cwd: Path = ROOT, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run Python as a build does, in ``build_environment``."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=build_environment(**changes), capture_output=True, text=True)
