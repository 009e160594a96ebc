"""What most trials begin with: embeddings, proxies or candidates, labels, and the numbers of their kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.fuzz import draws
from tests.fuzz.draws import classes, dimensions, flags, floats, label_vectors, matrices, sizes
from tests.fuzz.oracle import Check, Trial

Draw = Callable[[Any], Any]  # of a hypothesis strategy, a value
Trials = dict[str, Callable[[Draw], Trial | Check]]


@dataclass
class Batch:
    """A batch beside C proxies or other rows."""

    X: Tensor  # (B, D)
    P: Tensor  # (C, D)
    labels: Tensor  # (B,), of any integer type

    @property
    def B(self) -> int:
        return len(self.X)

    @property
    def C(self) -> int:
        return len(self.P)

    @property
    def D(self) -> int:
        return self.X.shape[1]

    @property
    def y(self) -> Tensor:
        """Labels as the reference takes them."""
        return self.labels.long()

    @property
    def compute(self) -> torch.dtype:
        return torch.float64 if torch.float64 in (self.X.dtype, self.P.dtype) else torch.float32

    @property
    def of_class(self) -> Tensor:
        """(C, B)."""
        return torch.arange(self.C)[:, None] == self.y


def proxied(draw: Draw, centers: int = 1, dtypes: Any = floats) -> Batch:
    """Of C·centers proxies; labels are below C."""
    B, C, D = draw(sizes), draw(classes), draw(dimensions)
    one = draw(dtypes)
    other = one if draw(flags) else draw(dtypes)
    X, P = draw(matrices(B, D, one)), draw(matrices(C * centers, D, other))
    return Batch(X, P, draw(label_vectors(B, C)))


def wanted_of(draw: Draw, *names: str) -> tuple[str, ...]:
    """Some of the names, at least one, or none at all."""
    chosen = tuple(name for name in names if draw(flags))
    return chosen or (names if draw(flags) else ())


def digits(D: int, *shifts: float) -> float:
    """How many ε a cosine may be off, where what is added to it has these sizes."""
    return (D + 8) * (1 + sum(abs(shift) for shift in shifts))


def chance(draw: Draw, share: int = 3) -> bool:
    """True one time in ``share``."""
    return draw(draws.st.integers(0, share - 1)) == 0
