"""How many classes a chunk holds."""

import pytest
import torch

from robustdml_ops.backends import cards
from robustdml_ops.engine import chunk_sizes as chunks
from robustdml_ops.engine.chunk_sizes import MB, cache_rows, chunk_rows

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
pytestmark = pytest.mark.usefixtures("default_card")
PER_CLASS = (0, 1, 300, 512, 1280, 9000, 70_000, 200_000, 10**7)
GB = 1024 * MB


@pytest.fixture
def default_card(monkeypatch):
    """A GPU without a row in the table of cards."""
    monkeypatch.setattr(cards, "architecture", lambda device: cards.DEFAULT)


@pytest.fixture(params=[4, 24, 80, 141])
def card(request, monkeypatch):
    """A GPU of so many GB."""
    monkeypatch.setattr(chunks, "memory", lambda device: request.param * GB)
    return request.param * GB


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_chunks_stay_within_the_cache(device):
    for per_class in PER_CLASS:
        rows = cache_rows(per_class, device)
        assert rows >= 64
        assert rows % 64 == 0
        # Beyond the cache, few rows that keep the products going.
        size = rows * per_class * 4
        assert rows == 64 or size <= 32 * MB or (rows <= 256 and size <= 128 * MB)


def test_the_cpu_takes_chunks_of_its_cache():
    for per_class in PER_CLASS:
        for classes in (0, 10**6):
            assert chunk_rows(classes, per_class, CPU, 10**6) == cache_rows(per_class, CPU)


@pytest.mark.parametrize("classes", [1, 63, 64, 65, 11_318, 10**5, 10**6, 10**7])
def test_a_gpu_takes_chunks_of_one_size_within_its_memory(classes, card):
    budget = min(GB, max(256 * MB, card // 64))
    for per_class in PER_CLASS:
        rows, size = chunk_rows(classes, per_class, CUDA), 4 * max(1, per_class)
        assert rows % 64 == 0
        assert rows == 64 or (rows <= 1 << 20 and rows * size <= budget)
        count = -(-classes // rows)
        assert rows * count - classes < 64 * count  # the last one is no sliver
        if count > 1:  # and one chunk less would be too large
            larger = -(-classes // (count - 1))
            assert larger > 1 << 20 or (larger + 64) * size > budget


def test_temporaries_of_an_epilogue_count(card):
    plain, eager = chunk_rows(10**7, 1280, CUDA), chunk_rows(10**7, 1280, CUDA, 8 * 256)
    assert eager < plain
    assert eager * (1280 + 8 * 256) * 4 <= GB
