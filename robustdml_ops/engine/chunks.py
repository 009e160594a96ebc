"""How many classes one chunk holds: enough for the matrix products to run at full rate, few enough to stay in cache."""

import torch


def chunk_rows(B: int, D: int, device: torch.device) -> int:
    """Classes per chunk, so that S (c, B), the unit proxies and their gradient (c, D) stay in the last-level cache."""
    budget = (32 if device.type == "cuda" else 12) << 20
    rows = budget // (4 * max(1, B + 2 * D))
    return max(64, min(65536 if device.type == "cuda" else 8192, rows // 64 * 64))
