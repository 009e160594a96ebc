"""Random sizes and arrays of calls by address: each array is exactly as long as a call may read or write."""

import numpy as np

SUFFIX = {np.float32: "f32", np.float64: "f64"}
ABSENT = np.iinfo(np.int32).min


def address(array):
    """Of an array; 0, null, for None."""
    return 0 if array is None else array.ctypes.data


class Draw:
    """Random sizes and arrays of one call."""

    def __init__(self, rng):
        self.rng = rng
        self.dtype = [np.float32, np.float64][rng.integers(2)]
        self.threads = int(rng.integers(1, 9))
        self.kept, self.outputs = [], []

    def size(self, least=0, most=70):
        return int(self.rng.choice([least, 1, 2, 15, 16, 17, 33, self.rng.integers(least, most + 1)]))

    def flag(self):
        return bool(self.rng.integers(2))

    def of(self, values, dtype=None):
        """In memory of exactly its length, perhaps from the second element on."""
        values = np.asarray(values, dtype or self.dtype)
        ahead = int(self.rng.integers(2))
        room = np.empty(values.size + ahead, values.dtype)
        room[:ahead] = 0
        array = room[ahead:].reshape(values.shape)
        array[...] = values
        self.kept.append(array)
        return array

    def normal(self, *shape):
        return self.of(self.rng.normal(0, 1, shape))

    def out(self, *shape, dtype=None):
        array = self.of(np.full(shape, np.nan) if dtype is None else np.full(shape, -7), dtype)
        self.outputs.append(array)
        return array

    def matrix(self, rows, columns, values=None, by_columns=None, dtype=None):
        """(address, row stride, column stride) and the numbers: no longer than its last element."""
        by_columns = self.flag() if by_columns is None else by_columns
        long, short = (columns, rows) if by_columns else (rows, columns)
        stride = short + int(self.rng.choice([0, 0, 1, 5]))
        flat = self.of(np.zeros(max(0, (long - 1) * stride + short) if long and short else 0), dtype)
        view = np.lib.stride_tricks.as_strided(
            flat, (rows, columns), tuple(flat.itemsize * s for s in ((1, stride) if by_columns else (stride, 1)))
        )
        view[...] = self.rng.normal(0, 1, (rows, columns)) if values is None else values
        return (address(flat), *((1, stride) if by_columns else (stride, 1))), view, by_columns

    def labels(self, rows, classes, dtype=np.int64):
        """Also of classes that are not among those of the chunk."""
        return self.of(self.rng.integers(-2, classes + 2, rows), dtype)

    def upstream(self, rows):
        """Two factors for all rows, or one each, or none: addresses and stride."""
        kind = self.rng.integers(3)
        if kind == 0:
            return {}, 0
        each = [self.normal(rows if kind == 1 else 1) for _ in range(2)]
        return {"upstream_positive": address(each[0]), "upstream_negative": address(each[1])}, int(kind == 1)


def function(module, name, draw):
    return getattr(module, f"{name}_{SUFFIX[draw.dtype]}")
