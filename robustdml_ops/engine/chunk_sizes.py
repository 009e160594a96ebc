"""How many classes, or anchors, a chunk holds: on the CPU what its cache holds, on a GPU what keeps it busy."""

import torch

from robustdml_ops.backends.cards import card

MB = 1 << 20
# Rows that any chunk may have: numbers of programs, of partial sums and of elements stay small.
LONGEST = 1 << 20


def chunk_rows(classes: int, per_class: int, device: torch.device, on_the_way: int = 0) -> int:
    """Classes per chunk, by shapes and the device alone, never by free memory: it fixes the order and bits of sums."""
    # On a GPU the host's six launches a chunk, up to 0.1 ms, must take less time than the chunk's S in memory.
    if device.type != "cuda":
        return cache_rows(per_class, device)
    size = 4 * max(1, per_class + on_the_way)
    row = card(device)
    budget = min(row.chunk_most_mb * MB, max(row.chunk_least_mb * MB, memory(device) // row.chunk_share))
    largest = min(LONGEST, max(64, budget // size // 64 * 64))
    chunks = -(-classes // largest)
    return min(largest, -(-classes // max(1, chunks) // 64) * 64) if classes else largest


def bytes_to_keep(device: torch.device) -> int:
    """Bytes of similarities that may stay between forward and backward: a share of a GPU's memory, 0 on the CPU."""
    return memory(device) // card(device).kept_share if device.type == "cuda" else 0


def cache_rows(per_class: int, device: torch.device) -> int:
    """Classes per chunk, so that what they bring stays in the last-level cache; ``per_class`` as above."""
    budget = (32 if device.type == "cuda" else 12) * MB
    size = 4 * max(1, per_class)
    # Where few rows fill the cache, S is in memory anyway, and a product of few rows is slow: 64 rows with 10⁵ columns
    # take 1.45 times as long as 256. So many, while S stays below 64 MB.
    least = max(64, min(256, 64 * MB // size // 64 * 64))
    return max(least, min(65536 if device.type == "cuda" else 8192, budget // size // 64 * 64))


def memory(device: torch.device) -> int:
    """Bytes of a GPU, or of the part of it that is lent; PyTorch keeps the number, so nothing waits."""
    return int(torch.cuda.get_device_properties(device).total_memory)
