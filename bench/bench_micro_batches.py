"""Memory of a step by micro-batches, beside that of the whole batch."""

import pytest

B = 4096


@pytest.mark.parametrize("micro", [B, 512, 64])
def test_memory(in_own_process, monkeypatch, micro):
    for name, value in (("MALLOC_MMAP_THRESHOLD_", "65536"), ("MALLOC_TRIM_THRESHOLD_", "0")):
        monkeypatch.setenv(name, value)
    in_own_process("micro_batches", B, micro, group=f"memory of a network and SupCon, B={B}", contender=str(micro))
