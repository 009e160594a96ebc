"""The native module, and one whose CUDA kernels are compiled for the host and run there on fibers.

With ROBUSTDML_NATIVE_UNDER_TEST both are the module at that path: so the sanitized build runs the same tests.
"""

import contextlib
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


@pytest.fixture(params=["cuda", "emulated"])
def device(request, monkeypatch):
    """Where the kernels run; with "emulated" the epilogues take CPU tensors to them."""
    import torch  # the sanitized runs do without

    from robustdml_ops.engine.native import module

    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        reason = module.unavailable(torch.device("cuda"), torch.float32)
        if reason:
            pytest.skip(reason)
        return torch.device("cuda")
    monkeypatch.setattr(module, "library", request.getfixturevalue("emulated"))
    monkeypatch.setattr(module, "current_stream", lambda _: contextlib.nullcontext(0))
    monkeypatch.setattr(module, "on_gpu", lambda _: True)
    return torch.device("cpu")
