"""The native functions, emulated CUDA kernels included, under AddressSanitizer and UndefinedBehaviorSanitizer.

``make sanitize`` makes more random calls, SANITIZE_CALLS of them, and has ThreadSanitizer watch eight at once.
"""

import os
import subprocess
import sys
from pathlib import Path

import native_builds
import pytest

pytestmark = pytest.mark.nightly
HERE = Path(__file__).parent
TESTS = sorted(str(path) for path in HERE.parent.glob("*/test_*_native.py"))  # of all kernels, at small sizes
CALLS = os.environ.get("SANITIZE_CALLS")


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


@pytest.fixture(scope="module")
def watched():
    """Runs Python with a module whose memory ThreadSanitizer watches."""
    if CALLS is None:
        pytest.skip("it takes a minute to compile: make sanitize runs it")
    return runner("libtsan.so", ["watched", "-DROBUSTDML_SANITIZE_THREADS=ON"])


def runner(library, build, **changes):
    reason = native_builds.missing_tools()
    if reason:
        pytest.skip(f"the module can't be built: {reason}")
    preloaded = str(runtime(library))
    module = str(native_builds.build(*build))
    environment = os.environ | changes | {"LD_PRELOAD": preloaded, "ROBUSTDML_NATIVE_UNDER_TEST": module}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=HERE, capture_output=True, text=True, timeout=3000
        )

    run.module = module
    return run


# Oracles of many digits are slow under the sanitizer's malloc, and a C++ exception ends a process that preloads it.
LEFT_OUT = "not mpmath and not refused and not cuda"


def test_native_functions_are_clean(sanitized):
    result = sanitized("-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-s", "-k", LEFT_OUT, *TESTS)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    assert "passed" in result.stdout
    assert "skipped" not in result.stdout
    assert len(TESTS) == 7


def test_an_overrun_is_noticed(sanitized):
    """The check above can fail: one row more than the array holds is reported."""
    overrun = (
        "import os, pathlib, native_builds, numpy as np\n"
        "native = native_builds.load(pathlib.Path(os.environ['ROBUSTDML_NATIVE_UNDER_TEST']))\n"
        "P, U, norm = np.ones((4, 8)), np.ones((4, 8)), np.ones(4)\n"
        "native.normalize_rows_f64((P.ctypes.data, 8, 1), (U.ctypes.data, 8, 1), norm.ctypes.data, 5, 8, 1)\n"
    )
    result = sanitized("-c", overrun)
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr


def test_random_calls_are_clean(sanitized):
    calls = CALLS or "3000"
    result = sanitized("fuzz_binding.py", sanitized.module, "--calls", calls, "--at-once", "2")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-5000:]
    assert result.stdout.strip() == f"{calls} calls"


def test_random_calls_at_once_do_not_race(watched):
    result = watched("fuzz_binding.py", watched.module, "--calls", CALLS, "--at-once", "8")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-5000:]
    assert "WARNING: ThreadSanitizer" not in result.stderr
