"""Random numbers by counter, the twin of ``csrc/math/counter_random.h``: SplitMix64 (Steele, Lea, Flood 2014).

Words are int64 with the bits of the unsigned ones; multiplications wrap around.
"""

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB
# The multipliers of the mixing function.
FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def mix_bits(x: Tensor) -> Tensor:
    """Scramble each word; a bijection."""
    x = (x ^ shifted(x, 30)) * FIRST
    x = (x ^ shifted(x, 27)) * _SECOND
    return x ^ shifted(x, 31)


def shifted(x: Tensor, bits: int) -> Tensor:
    """Shifted to the right with zeros from the left; int64 itself would repeat its sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def random_key(seed: int, stream: int) -> Tensor:
    """Key () of a stream of a seed below 2⁶⁴."""
    return mix_bits(mix_bits(torch.tensor(seed - (seed >> 63 << 64), device="cpu")) + stream)


def random_words(key: Tensor | int, places: Tensor) -> Tensor:
    """Words of a stream at ``places`` int64."""
    return mix_bits((places + 1) * GOLDEN + key)
