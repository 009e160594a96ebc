"""Sizes of a step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Batch, classes and embedding size."""

    B: int
    C: int
    D: int

    def __str__(self) -> str:
        return f"B={self.B} C={self.C:.0e} D={self.D}".replace("e+0", "e")
