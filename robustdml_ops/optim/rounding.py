"""Stochastic rounding to bfloat16: up with a probability that keeps the mean.

With round-to-nearest a moment that changes by less than half of its last digit a step (AdamW's v at β₂ = 0.999) would
never change. The random bits are a function of seed, step and place (``csrc/math/counter_random.h``): runs repeat.
"""

import torch
from torch import Tensor

from robustdml_ops.losses.sampling import GOLDEN, mix_bits
from robustdml_ops.ops.self_paced.counter_random import random_key


def step_key(seed: int, parameter: int, step: int, place: int) -> int:
    """Key, below 2⁶⁴, of the random words from ``place`` on of one step on the optimiser's parameter of that number."""
    key = int(random_key(int(random_key(seed, parameter)[0]), step)[0])
    return (key + place * GOLDEN) % (1 << 64)


def random_bits(key: int, places: Tensor) -> Tensor:
    """The words of the stream at ``places`` int64, as int64: the bits of ``random_word`` in C++."""
    return mix_bits((places + 1) * GOLDEN + (key - (1 << 64) if key >= 1 << 63 else key))


def round_at_random(values: Tensor, bits: Tensor) -> Tensor:
    """``values`` as bfloat16, rounded by the lowest 16 of ``bits`` (int64)."""
    whole = values.float().view(torch.int32).long() & 0xFFFFFFFF
    upper = ((whole + (bits & 0xFFFF)) >> 16) & 0xFFFF
    return (upper << 16).to(torch.int32).view(torch.float32).to(torch.bfloat16)
