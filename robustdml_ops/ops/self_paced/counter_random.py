"""Random numbers by counter, the twin of ``csrc/math/counter_random.h``: SplitMix64 (Steele, Lea, Flood 2014)."""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix_bits(z: Words) -> Words:
    """Scramble each word; a bijection."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = z ^ (z >> np.uint64(31))
    return mixed


def random_key(seed: int, stream: int) -> Words:
    """Key of a stream of a seed; (1,)."""
    return mix_bits(mix_bits(np.array([seed], np.uint64)) + np.uint64(stream))


def random_words(key: Words, first: int, count: int) -> Words:
    """Words ``first`` … ``first + count − 1`` of a stream."""
    n = np.uint64(first) + np.arange(1, count + 1, dtype=np.uint64)
    return mix_bits(key + n * _GOLDEN)


def random_units(key: Words, first: int, count: int) -> NDArray[np.float64]:
    """Those words as numbers in [0, 1), multiples of 2⁻⁵³."""
    units: NDArray[np.float64] = (random_words(key, first, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return units


def scale_units(units: NDArray[np.float64], bound: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Integers 0 … bound − 1."""
    return (units * bound).astype(np.int64)
