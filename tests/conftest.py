"""Fixtures of all tests: uninitialised memory is NaN, and seeds are fixed.

The native module comes in two builds: the installed one, and one whose CUDA kernels are compiled for the host and run
there on fibers. ROBUSTDML_NATIVE_UNDER_TEST replaces both by the module at that path, such as the sanitized build.
"""

import contextlib
import os
import warnings
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with a fixed workspace

os.environ.setdefault("ROBUSTDML_SELF_CHECK", "0")  # its own tests turn it on

import pytest
import torch
from hypothesis import settings

from robustdml_ops.backends import dispatch, native_module, self_check
from tests.native import native_builds

UNDER_TEST = os.environ.get("ROBUSTDML_NATIVE_UNDER_TEST")
if UNDER_TEST:
    native_module.library = native_builds.load(Path(UNDER_TEST))


def pytest_addoption(parser):
    parser.addoption("--end-cases", action="store_true", help="of each test function the first and the last case")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--end-cases", default=False):
        short = [item for item in items if not item.get_closest_marker("nightly")]
        first, last = ({(one.path, one.originalname): one for one in order} for order in (short[::-1], short))
        ends = {*first.values(), *last.values()}
        items[:] = [item for item in short if item in ends]


settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _poisoned_memory_and_a_seed():
    """In deterministic mode PyTorch fills what ``torch.empty`` returns with NaN."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# Names under which modules import the functions that choose the size of a chunk.
SMALL_CHUNKS = (
    "backends.native_module.lane_rows",
    "engine.similarity_chunks.chunk_rows",
    "losses.smooth_proxy_anchor.chunk_rows",
    "ops.pairs.sweep.chunk_rows",
    "ops.anchor.sweep.cache_rows",
    "ops.classes.autograd.cache_rows",
    "ops.pairs.autograd.cache_rows",
)


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 7 classes, so that small cases cross many boundaries."""
    for place in SMALL_CHUNKS:
        monkeypatch.setattr(f"robustdml_ops.{place}", lambda *_: 7)


@pytest.fixture
def as_in_training():
    """Nothing is filled with NaN, where each operation counts or is traced."""
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def exact_products():
    """No TF32, so that tolerances of float32 hold."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(precision)


@pytest.fixture
def cpu_is_checked(monkeypatch, tmp_path):
    """Backends are checked before they are trusted, on the CPU, too, from an empty cache on."""
    monkeypatch.delenv("ROBUSTDML_SELF_CHECK")
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(self_check, "CHECKED", {"cpu", "cuda"})
    monkeypatch.setattr(self_check, "_VERDICTS", {})
    dispatch._tell_once.cache_clear()


@pytest.fixture(params=["native", "eager"])
def backend(request):
    """A backend of the CPU by its name."""
    if request.param == "native":
        pytest.importorskip("robustdml_ops._native")
    return request.param


@pytest.fixture
def no_waiting():
    """A context in which an operation that waits for the GPU raises."""

    @contextlib.contextmanager
    def forbidden():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first call warns of a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return forbidden


@pytest.fixture(scope="session")
def native():
    if native_module.library is None:
        pytest.skip(native_module._REASON)
    return native_module.library


@pytest.fixture(scope="session")
def emulated():
    if UNDER_TEST:
        return native_module.library
    reason = native_builds.missing_tools()
    if reason:
        pytest.skip(f"the emulated kernels can't be built: {reason}")
    return native_builds.load(native_builds.build("emulated", "-DROBUSTDML_EMULATE_CUDA=ON"))


def _native_on(kind, request, monkeypatch):
    if kind == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        reason = native_module.unavailable(torch.device("cuda"), torch.float32)
        if reason:
            pytest.skip(reason)
        return torch.device("cuda")
    monkeypatch.setattr(
        native_module, "library", request.getfixturevalue("emulated" if kind == "emulated" else "native")
    )
    monkeypatch.setattr(native_module, "matrix_product", lambda _: 0)
    if kind == "emulated":
        monkeypatch.setattr(native_module, "current_stream", lambda _: contextlib.nullcontext(0))
        monkeypatch.setattr(native_module, "on_gpu", lambda _: True)
    return torch.device("cpu")


@pytest.fixture(params=["cpu", "emulated", "cuda"])
def device(request, monkeypatch):
    """Where native functions run, a chunk at a time; with "emulated" CPU tensors are taken to the CUDA kernels."""
    return _native_on(request.param, request, monkeypatch)


@pytest.fixture(params=["emulated", "cuda"])
def cuda_device(request, monkeypatch):
    """As ``device``, without the CPU's functions."""
    return _native_on(request.param, request, monkeypatch)


@pytest.fixture
def threads():
    """Sets PyTorch's number of threads, until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
