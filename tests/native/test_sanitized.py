"""The native functions, emulated CUDA kernels included, under AddressSanitizer and UndefinedBehaviorSanitizer.

PyTorch's memory has red zones then, too. ``make sanitize`` makes more random calls, FUZZ_CASES of each op, and has
ThreadSanitizer watch losses in several threads.
"""

import os
import subprocess
import sys
from pathlib import Path

import native_builds
import pytest

pytestmark = pytest.mark.nightly
HERE = Path(__file__).parent
KERNELS = sorted(f"{path.parent.name}/{path.name}" for path in HERE.parent.glob("*/test_*_native.py"))  # at small sizes
# Sweeps over all rows, for random sizes, layouts and labels; by many threads; and with updates of the proxies.
SWEEPS = (
    "fuzz/test_fuzz.py",
    "native/test_lanes.py",
    "anchor/test_anchor_plan.py",
    "pairs/test_pair_plan.py",
    "optim/test_optimizers.py",
    "self_paced/test_written_out.py",
)


def runtime(name: str) -> Path:
    """The library that has to be loaded before Python."""
    compiler = os.environ.get("CXX") or native_builds.tool("c++")
    answer = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    library = Path(answer.stdout.strip())
    if not library.is_absolute():
        pytest.skip(f"the C++ compiler comes without {name}")
    return library


@pytest.fixture(scope="module")
def sanitized():
    """Runs Python with a module under AddressSanitizer and UndefinedBehaviorSanitizer."""
    changes = {
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees little of what it owns at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # every array with its own red zones
    }
    return runner("libasan.so", ["sanitized", "-DROBUSTDML_SANITIZE=ON", "-DROBUSTDML_EMULATE_CUDA=ON"], **changes)


def runner(library, build, **changes):
    reason = native_builds.missing_tools()
    if reason:
        pytest.skip(f"the module can't be built: {reason}")
    module = str(native_builds.build(*build))
    environment = os.environ | changes | {"LD_PRELOAD": str(runtime(library)), "ROBUSTDML_NATIVE_UNDER_TEST": module}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=HERE, capture_output=True, text=True, timeout=3000
        )

    return run


def passes(run, left_out, files):
    """Whole tests in a process whose memory is looked at."""
    options = ["-p", "no:cacheprovider", "-n", "0", "-s", "-m", "not nightly", "-k", f"not ({left_out})"]
    result = run("-m", "pytest", *options, *(str(HERE.parent / file) for file in files))
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    assert "passed" in result.stdout
    assert "skipped" not in result.stdout
    assert "WARNING: ThreadSanitizer" not in result.stderr


def test_kernels_are_clean(sanitized):
    """Oracles of many digits are slow under the sanitizer's malloc, and a C++ exception ends a process like this."""
    assert len(KERNELS) == 7
    passes(sanitized, "mpmath or refused or cuda", KERNELS)


def test_sweeps_are_clean(sanitized):
    passes(sanitized, "wrong_calls or eager or random_rounding or refused", SWEEPS)


@pytest.mark.skipif("FUZZ_CASES" not in os.environ, reason="it takes a minute to compile: make sanitize runs it")
def test_losses_in_several_threads_do_not_race():
    # Threads of PyTorch's own OpenMP library would be races to it, which does not know its locks.
    watched = runner("libtsan.so", ["watched", "-DROBUSTDML_SANITIZE_THREADS=ON"], OMP_NUM_THREADS="1")
    passes(watched, "eager", ["package/test_concurrency.py"])
