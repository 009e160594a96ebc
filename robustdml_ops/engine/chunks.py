"""How many classes one chunk holds: enough for the matrix products to run at full rate, few enough to stay in cache."""

import torch


def chunk_rows(per_class: int, device: torch.device) -> int:
    """Classes per chunk, so that what they bring stays in the last-level cache.

    Parameters
    ----------
    per_class : int
        4-byte elements that one class brings: B of S, D of the proxy, D of its gradient, and what its set takes.
    """
    budget = (32 if device.type == "cuda" else 12) << 20
    size = 4 * max(1, per_class)
    # Where few rows fill the cache, S is in memory anyway, and a product of few rows is slow: 64 rows with 10⁵ columns
    # take 1.45 times as long as 256. So many, while S stays below 128 MB.
    least = max(64, min(256, (128 << 20) // size // 64 * 64))
    return max(least, min(65536 if device.type == "cuda" else 8192, budget // size // 64 * 64))
