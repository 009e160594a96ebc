"""Types of arrays, by what their numbers are."""

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
