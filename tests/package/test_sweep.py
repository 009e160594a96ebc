"""Types and chunks of the sweep."""

from types import SimpleNamespace

import pytest
import torch

from robustdml_ops.sweep import chunk_rows, compute_dtype, operand_dtype

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("dtype", "autocast", "supported", "expected"),
    [
        (F32, False, True, F32),
        (F32, True, True, BF16),
        (BF16, False, True, BF16),
        (F16, False, True, BF16),  # float16 has no room for gradients of size 1/C
        (F16, True, False, F32),
        (F64, True, True, F64),
    ],
)
def test_operands_on_a_gpu(dtype, autocast, supported, expected, monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: autocast)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    embeddings = SimpleNamespace(dtype=dtype, device=torch.device("cuda"))
    assert operand_dtype(embeddings, F64 if dtype == F64 else F32) == expected


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_operands_elsewhere_are_those_of_the_sums(dtype):
    assert operand_dtype(torch.ones(1, 1, dtype=dtype), F32) == F32


def test_sums_are_in_float32_at_least():
    assert compute_dtype(torch.ones(1, 1, dtype=BF16), torch.ones(1, 1, dtype=F16)) == F32
    assert compute_dtype(torch.ones(1, 1, dtype=BF16), torch.ones(1, 1, dtype=F64)) == F64


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_chunks_stay_within_their_budget(device):
    for per_class in (0, 1, 300, 512, 1280, 9000, 70_000, 200_000, 10**7):
        rows = chunk_rows(per_class, torch.device(device))
        assert rows >= 64
        assert rows % 64 == 0
        # Beyond the cache, few rows that keep the products going.
        size = rows * per_class * 4
        assert rows == 64 or size <= 32 << 20 or (rows <= 256 and size <= 128 << 20)
