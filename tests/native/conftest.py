"""The native module, and one whose CUDA kernels are compiled for the host and run there on fibers.

With ROBUSTDML_NATIVE_UNDER_TEST both are the module at that path: so the sanitized build runs the same tests.
"""

import importlib
import os
from pathlib import Path

import native_builds
import pytest


@pytest.fixture(scope="session")
def native():
    under_test = os.environ.get("ROBUSTDML_NATIVE_UNDER_TEST")
    if under_test:
        return native_builds.load(Path(under_test))
    try:
        return importlib.import_module("robustdml_ops._native")
    except ImportError as error:
        pytest.skip(f"the native module is not installed: {error}")


@pytest.fixture(scope="session")
def emulated():
    under_test = os.environ.get("ROBUSTDML_NATIVE_UNDER_TEST")
    if under_test:
        return native_builds.load(Path(under_test))
    reason = native_builds.missing_tools()
    if reason:
        pytest.skip(f"the emulated kernels can't be built: {reason}")
    return native_builds.load(native_builds.build("emulated", "-DROBUSTDML_EMULATE_CUDA=ON"))
