"""What all tests share: memory that nobody has written is NaN, and no result may depend on chance."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with a fixed workspace

import pytest
import torch
from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _poisoned_memory_and_a_seed():
    """In deterministic mode PyTorch fills what ``torch.empty`` returns with NaN."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 7 classes, so that small cases cross many boundaries."""
    monkeypatch.setattr("robustdml_ops.engine.similarities.chunk_rows", lambda *_: 7)
    monkeypatch.setattr("robustdml_ops.engine.pair_sweep.chunk_rows", lambda *_: 7)
    monkeypatch.setattr("robustdml_ops.engine.counting.chunk_rows", lambda *_: 7)
