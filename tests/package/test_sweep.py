"""Chunks of the sweep."""

import pytest
import torch

from robustdml_ops.sweep import chunk_rows


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_chunks_stay_within_their_budget(device):
    for per_class in (0, 1, 300, 512, 1280, 9000, 70_000, 200_000, 10**7):
        rows = chunk_rows(per_class, torch.device(device))
        assert rows >= 64
        assert rows % 64 == 0
        # Beyond the cache, few rows that keep the products going.
        size = rows * per_class * 4
        assert rows == 64 or size <= 32 << 20 or (rows <= 256 and size <= 128 << 20)
