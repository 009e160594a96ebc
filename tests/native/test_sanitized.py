"""The native functions, emulated CUDA kernels included, under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
import sys
from pathlib import Path

import native_builds
import pytest

HERE = Path(__file__).parent
# What calls the native functions by address, in every room.
TESTS = sorted(str(path) for path in HERE.parent.glob("*/test_*_native.py"))


def asan_library() -> Path:
    """The runtime that has to be loaded before Python."""
    compiler = os.environ.get("CXX") or native_builds.tool("c++")
    answer = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return Path(answer.stdout.strip())


@pytest.fixture(scope="module")
def sanitized():
    """Runs Python with the sanitized module, whose path is the last argument."""
    reason = native_builds.missing_tools()
    if reason:
        pytest.skip(f"the sanitized module can't be built: {reason}")
    library = asan_library()
    if not library.is_absolute():
        pytest.skip("the C++ compiler comes without libasan")
    module = native_builds.build("sanitized", "-DROBUSTDML_SANITIZE=ON", "-DROBUSTDML_EMULATE_CUDA=ON")
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees little of what it owns at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # every array with its own red zones
        "ROBUSTDML_NATIVE_UNDER_TEST": str(module),
    }

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=HERE, capture_output=True, text=True, timeout=600
        )

    return run


# Oracles of many digits are slow under the sanitizer's malloc, and a C++ exception ends a process that preloads it.
LEFT_OUT = "not mpmath and not small_rows and not refused"


def test_native_functions_are_clean(sanitized):
    result = sanitized("-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-s", "-k", LEFT_OUT, *TESTS)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    assert "passed" in result.stdout
    assert "skipped" not in result.stdout
    assert len(TESTS) == 9


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
