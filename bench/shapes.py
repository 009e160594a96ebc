"""Sizes of a step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Batch, classes and embedding size."""

    B: int
    C: int
    D: int

    def __str__(self) -> str:
        C = f"{self.C:.0e}".replace("e+0", "e")
        return f"B={self.B} C={C if float(C) == self.C else self.C} D={self.D}"


# The size that this is for, that size with fewer classes, a first trial's, and batches whose pairs are compared.
LARGE, MIDDLE, SMALL = Shape(1024, 10**6, 512), Shape(1024, 10**5, 512), Shape(256, 10**5, 128)
BATCH, SMALL_BATCH = Shape(8192, 0, 512), Shape(1024, 0, 512)
