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
    rows = budget // (4 * max(1, per_class))
    return max(64, min(65536 if device.type == "cuda" else 8192, rows // 64 * 64))
