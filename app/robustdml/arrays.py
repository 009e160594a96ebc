"""Types of arrays, by what their numbers are, and how rows are divided or thinned out."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.generic]
Floats: TypeAlias = NDArray[np.floating]  # Of any precision
Singles: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Labels: TypeAlias = NDArray[np.int64]  # Classes of samples, 0..C-1, (N,)
Rows: TypeAlias = NDArray[np.int64]  # Numbers of samples, (n,)
Mask: TypeAlias = NDArray[np.bool_]
Pixels: TypeAlias = NDArray[np.uint8]


def blocks(count: int, size: int, first: int = 0) -> list[slice]:
    """Cut first..count into pieces."""
    return [slice(start, min(start + size, count)) for start in range(first, count, size)]


def evenly(count: int, most: int) -> Rows:
    """At most so many of the rows 0..count-1, evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)
