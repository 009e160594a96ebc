"""What a random call is made of: sizes, types, values and memory layouts of its tensors.

Hypothesis draws the structure (how many, which kind, which layout) and a seed; the numbers come from the seed. So a
case that fails shrinks in structure, and is made again from a few choices.
"""

import os

import torch
from hypothesis import strategies as st
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# Directions of rows: spread, on a lattice (many equal cosines, exact ones, 0), near each other, all equal, axes.
DIRECTIONS = ("normal", "lattice", "near", "equal", "axes")
# Their lengths, by powers of ten; "mixed" has rows of all lengths side by side.
LENGTHS = ("one", "mixed", "tiny", "huge")
LAYOUTS = ("contiguous", "by columns", "every other", "a part of wider rows", "at an odd address")
LABELS = ("random", "one class", "every class once", "half of the classes", "the last class")

sizes = st.integers(0, 12) | st.sampled_from([1, 2, 17, 33])
dimensions = st.integers(1, 9) | st.sampled_from([16, 33])
classes = st.integers(1, 12) | st.sampled_from([1, 2, 40, 100])
seeds = st.integers(0, 2**31)
floats = st.sampled_from(FLOATS)
flags = st.booleans()
# Where the environment names one, as in Triton's interpreter, that.
backends = st.deferred(
    lambda: st.sampled_from([None] if "ROBUSTDML_BACKEND" in os.environ else [None, "native", "eager"])
)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@st.composite
def matrices(draw, rows: int, columns: int, dtype: torch.dtype | None = None) -> Tensor:
    """A (rows, columns) matrix of finite numbers whose rows are directions of some length, some of them zero."""
    dtype = draw(floats) if dtype is None else dtype
    generator = generator_of(draw(seeds))
    values = _directions(generator, rows, columns, draw(st.sampled_from(DIRECTIONS)))
    values = values * _lengths(generator, rows, dtype, draw(st.sampled_from(LENGTHS)))
    if draw(st.integers(0, 4)) == 0 and rows:
        values[torch.randint(rows, (1 + rows // 4,), generator=generator)] = 0
    return draw(laid_out(values.to(dtype)))


def _directions(generator: torch.Generator, rows: int, columns: int, kind: str) -> Tensor:
    values = normal(generator, rows, columns)
    if kind == "lattice":
        return torch.randint(-2, 3, (rows, columns), generator=generator).double()
    if kind == "near":
        centers = normal(generator, 3, columns)
        return (
            centers[torch.randint(3, (rows,), generator=generator)]
            + 10.0 ** -float(torch.randint(1, 9, (), generator=generator)) * values
        )
    if kind == "equal":
        return normal(generator, 1, columns).expand(rows, columns).clone()
    if kind == "axes":
        signs = torch.randint(0, 2, (rows, 1), generator=generator).double() * 2 - 1
        return torch.eye(columns, dtype=torch.float64)[torch.randint(columns, (rows,), generator=generator)] * signs
    return values


def _lengths(generator: torch.Generator, rows: int, dtype: torch.dtype, kind: str) -> Tensor:
    """Powers of two, (rows, 1), so that no digit of a direction is lost but for the range of the type."""
    least, largest = {torch.float16: (-10, 8), torch.float64: (-900, 900)}.get(dtype, (-110, 110))
    low, high = {
        "one": (0, 0),
        "mixed": (least, largest),
        "tiny": (least, least // 2),
        "huge": (largest // 2, largest),
    }[kind]
    exponents = low + (high - low) * uniform(generator, rows, 1)
    return torch.exp2(exponents.round())


@st.composite
def laid_out(draw, matrix: Tensor) -> Tensor:
    """The same numbers elsewhere in memory."""
    return in_layout(matrix, draw(st.sampled_from(LAYOUTS)))


def in_layout(matrix: Tensor, layout: str) -> Tensor:
    rows, columns = matrix.shape
    if layout == "by columns":
        return matrix.t().contiguous().t()
    if layout == "every other":
        wide = matrix.new_full((2 * rows, columns), torch.nan)
        wide[::2] = matrix
        return wide[::2]
    if layout == "a part of wider rows":
        wide = matrix.new_full((rows, columns + 3), torch.nan)
        wide[:, 2 : 2 + columns] = matrix
        return wide[:, 2 : 2 + columns]
    if layout == "at an odd address":
        flat = matrix.new_full((rows * columns + 1,), torch.nan)
        flat[1:] = matrix.reshape(-1)
        return flat[1:].view(rows, columns)
    return matrix.contiguous()


@st.composite
def label_vectors(draw, rows: int, num_classes: int, dtypes: tuple[torch.dtype, ...] = INTEGERS) -> Tensor:
    """(rows,) labels below ``num_classes``, of an integer type that holds them, perhaps every other of a vector."""
    generator = generator_of(draw(seeds))
    kind = draw(st.sampled_from(LABELS))
    labels = torch.randint(num_classes, (rows,), generator=generator)
    if kind == "one class":
        labels[:] = int(torch.randint(num_classes, (), generator=generator))
    elif kind == "every class once":
        labels = torch.randperm(num_classes, generator=generator)[torch.arange(rows) % num_classes]
    elif kind == "half of the classes":
        labels = torch.randint(max(1, num_classes // 2), (rows,), generator=generator)
    elif kind == "the last class":
        labels[::2] = num_classes - 1
    dtype = draw(st.sampled_from([t for t in dtypes if num_classes - 1 <= torch.iinfo(t).max]))
    labels = labels.to(dtype)
    return labels.repeat_interleave(2)[::2] if draw(flags) else labels
